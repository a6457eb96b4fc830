import assert from "node:assert/strict";
import { X509Certificate } from "node:crypto";
import { createServer } from "node:http";
import { once } from "node:events";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { AddressInfo } from "node:net";
import { after, before, describe, it } from "node:test";
import { eventually } from "@coppice/core/testing";
import { Sandbox } from "@e2b/code-interpreter";
import { parser } from "@prometheus-io/lezer-promql";
import { parse as parseYaml } from "yaml";
import { exchange } from "../../harness/clients/exchange.js";
import { API_KEY } from "../../harness/server/api-key.js";
import { startCoppice } from "../../harness/server/coppice-command.js";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { Scrape } from "../../harness/clients/scrape.js";
import { type Fleet, startFleet } from "../../harness/server/start-fleet.js";

const FOLDER = new URL("../../../../docs/grafana/", import.meta.url);
/** Labels that Prometheus itself adds: the first two to every target, `le` to every histogram. */
const OF_PROMETHEUS = new Set(["instance", "job", "le"]);
const SETTLE_MS = 30_000;

/** A metric that a query reads, and the labels that it selects or groups it by. */
interface Reading {
  readonly query: string;
  readonly metric: string;
  readonly labels: readonly string[];
}

interface Panel {
  readonly type: string;
  readonly title: string;
  readonly targets?: readonly { readonly expr: string }[];
  readonly links?: readonly { readonly url: string }[];
}

interface Rule {
  readonly alert: string;
  readonly expr: string;
  readonly annotations: { readonly runbook_url?: string };
}

interface RuleGroup {
  readonly name: string;
  readonly rules: readonly Rule[];
}

/** @throws AssertionError when it is no PromQL. */
function readingsOf(query: string): readonly Reading[] {
  // Grafana replaces its variables before Prometheus reads the text.
  const text = query.replaceAll("$__rate_interval", "5m").replaceAll("$instance", ".*");
  const metrics: string[] = [];
  const labels = new Set<string>();
  parser.parse(text).iterate({
    enter({ name, type, from, to }) {
      assert.ok(!type.isError, `no PromQL at ${from} of: ${text}`);
      if (name === "Identifier") metrics.push(text.slice(from, to));
      if (name === "LabelName") labels.add(text.slice(from, to));
    },
  });
  assert.notEqual(metrics.length, 0, `reads nothing: ${text}`);
  const own = [...labels].filter((label) => !OF_PROMETHEUS.has(label));
  return metrics.map((metric) => ({ query, metric, labels: own }));
}

async function panelsOfDashboard(): Promise<readonly Panel[]> {
  const text = await readFile(new URL("coppice.json", FOLDER), "utf8");
  return (JSON.parse(text) as { readonly panels: readonly Panel[] }).panels;
}

async function groupsOfAlerts(): Promise<readonly RuleGroup[]> {
  const text = await readFile(new URL("alerts.yaml", FOLDER), "utf8");
  return (parseYaml(text) as { readonly groups: readonly RuleGroup[] }).groups;
}

describe("the runbook", () => {
  const page = "/docs/runbook.html#";
  let sections: readonly (readonly [group: string, alerts: readonly string[]])[];

  before(async () => {
    const text = await readFile(new URL("../runbook.md", FOLDER), "utf8");
    sections = text
      .split(/^## /m)
      .slice(1)
      .map((group) => [
        group.split("\n", 1)[0] ?? "",
        [...group.matchAll(/^### (.+)$/gm)].map(([, alert = ""]) => alert),
      ]);
  });

  it("has a section for each alert, in the order of the rules, and each section an alert that links to it", async () => {
    const groups = await groupsOfAlerts();
    assert.deepEqual(
      sections.filter(([, alerts]) => alerts.length > 0),
      groups.map(({ name, rules }) => [name, rules.map(({ alert }) => alert)]),
    );
    for (const { alert, annotations } of groups.flatMap(({ rules }) => rules))
      assert.equal(annotations.runbook_url, `https://docs.example.com${page}${alert.toLowerCase()}`);
  });

  it("says of each alert what it means, what to do and when to wake somebody", async () => {
    const text = await readFile(new URL("../runbook.md", FOLDER), "utf8");
    for (const section of text.split(/^### /m).slice(1))
      assert.match(section, /^Coppice\w+\n\n\S[^]+\n- \*\*Do:\*\* [^]+\n- \*\*Wake somebody:\*\* /);
  });

  it("is linked from each group of the dashboard", async () => {
    const panels = await panelsOfDashboard();
    const links = new Map<string, string[]>();
    let row = "";
    for (const { type, title, links: own = [] } of panels) {
      if (type === "row") links.set((row = title), []);
      else links.get(row)?.push(...own.map(({ url }) => url));
    }
    assert.ok(links.size > 5);
    for (const [group, urls] of links) {
      assert.deepEqual(urls, [`\${docs}${page}${group.toLowerCase()}`]);
      assert.ok(
        sections.some(([name]) => name === group),
        `no part of the runbook is about ${group}`,
      );
    }
  });
});

describe("the dashboard and the alerts of docs/grafana", () => {
  let directory: string;
  let fleet: Fleet;
  let scrape: Scrape;

  before(async () => {
    directory = await mkdtemp(join(tmpdir(), "coppice-test-"));
    const issued = await startCoppice(["tls", "init", "sandboxes.test", directory]).end;
    assert.equal(issued.code, 0, issued.stderr);
    const tls = { cert: join(directory, "cert.pem"), key: join(directory, "key.pem") };
    fleet = await startFleet({
      count: 1,
      listeners: { ops: {}, envd: { tls } },
      store: { file: join(directory, "fleet.sqlite") },
      server: {
        sandboxes: { templates: { "base": {}, "code-interpreter-v1": { pool: { min: 1 } } } },
      },
      settings: { events: { webhooks: { privateTargets: ["127.0.0.1"] } } },
    });
    const [server] = fleet.servers;
    assert.ok(server);
    pointSdkAt(server.url);
    const ops = server.urls["ops"] ?? "";
    await using receiver = await listen();
    await exchange(server.url, {
      method: "POST",
      path: "/events/webhooks",
      headers: { "content-type": "application/json", "x-api-key": API_KEY },
      body: JSON.stringify({ url: receiver.url, events: ["sandbox.lifecycle.created"] }),
    });
    await eventually(
      "a warm sandbox",
      async () => (await Scrape.of(ops)).sum("coppice_sandboxes_warm") === 1,
      SETTLE_MS,
    );
    const sandbox = await Sandbox.create();
    await sandbox.commands.run("true");
    await sandbox.runCode("1");
    await sandbox.files.write("a", "b");
    await eventually(
      "a delivery",
      async () => (await Scrape.of(ops)).sum("coppice_events_attempts_total") > 0,
      SETTLE_MS,
    );
    scrape = await Scrape.of(ops);
    await sandbox.kill();
  });

  after(async () => {
    await fleet[Symbol.asyncDispose]();
    await rm(directory, { recursive: true });
  });

  const check = ({ query, metric, labels }: Reading): void => {
    // Prometheus' own metric of whether it could read a target.
    if (metric === "up") return;
    assert.ok(scrape.names.has(metric), `no server has ${metric}, which is read by: ${query}`);
    const missing = labels.filter((label) => !scrape.labelsOf(metric).has(label));
    assert.deepEqual(missing, [], `labels of ${metric}, read by: ${query}`);
  };

  it("read what a server has, by labels that it has", async () => {
    const queries = (await panelsOfDashboard()).flatMap(({ targets = [] }) =>
      targets.map(({ expr }) => expr),
    );
    assert.ok(queries.length > 30, "the dashboard is empty");
    for (const query of queries) readingsOf(query).forEach(check);
    const rules = (await groupsOfAlerts()).flatMap(({ rules }) => rules);
    assert.ok(rules.length > 5, "there are no alerts");
    for (const { expr } of rules) readingsOf(expr).forEach(check);
  });

  it("tell when the certificate in use ends", async () => {
    const { validToDate } = new X509Certificate(await readFile(join(directory, "cert.pem")));
    assert.equal(
      scrape.sum("coppice_certificate_expiry_timestamp_seconds", 'listener="envd"'),
      validToDate.getTime() / 1000,
    );
  });

  it("leave out no metric of a feature that is on", async () => {
    const text =
      (await readFile(new URL("coppice.json", FOLDER), "utf8")) +
      (await readFile(new URL("alerts.yaml", FOLDER), "utf8"));
    const unseen = [...scrape.names]
      .filter((name) => name.startsWith("coppice_"))
      .map((name) => name.replace(/_(bucket|sum|count)$/, ""))
      .filter((name) => !text.includes(name));
    assert.deepEqual([...new Set(unseen)], []);
  });

  it("tell the routes of RPCs, files and code apart", () => {
    for (const route of ["/process.Process/Start", "/files", "/execute", "/v2/sandboxes"])
      assert.ok(scrape.sum("coppice_http_request_seconds_count", `route="${route}"`) > 0, route);
  });
});

/** A receiver that accepts every request. */
async function listen(): Promise<AsyncDisposable & { readonly url: string }> {
  const receiver = createServer((message, response) => {
    message.resume();
    response.end();
  }).listen(0, "127.0.0.1");
  await once(receiver, "listening");
  return {
    url: `http://127.0.0.1:${(receiver.address() as AddressInfo).port}/`,
    async [Symbol.asyncDispose]() {
      receiver.closeAllConnections();
      receiver.close();
      await once(receiver, "close");
    },
  };
}
