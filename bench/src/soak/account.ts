import type { Scrape } from "@coppice/test/harness/clients/scrape.js";
import type { Tally } from "./tally.js";

/**
 * Compares the counts of an idle server with those of its clients.
 * @returns the differences, as text
 */
export function account(scrape: Scrape, tally: Tally): readonly string[] {
  const faults: string[] = [];
  const expect = (words: string, found: number, least: number, most = least): void => {
    if (found >= least && found <= most) return;
    faults.push(
      `${words}: the server counts ${found}, clients ${least === most ? least : `${least} to ${most}`}`,
    );
  };
  const created = scrape.sum("coppice_sandboxes_created_total");
  expect("sandboxes made", created, tally.least("sandboxes"), tally.most("sandboxes"));
  expect("sandboxes made and ended", scrape.sum("coppice_sandboxes_ended_total"), created);
  expect("sandboxes that run", scrape.sum("coppice_sandboxes_running"), 0);
  expect("sandboxes that are paused", scrape.sum("coppice_sandboxes_paused"), 0);
  const started = scrape.sum("coppice_commands_started_total");
  expect("commands", started, tally.least("commands"), tally.most("commands"));
  expect("commands started and finished", scrape.sum("coppice_commands_finished_total"), started);
  expect("commands that run", scrape.sum("coppice_commands_active"), 0);
  expect(
    "executions",
    scrape.sum("coppice_jupyter_executions_total"),
    tally.least("executions"),
    tally.most("executions"),
  );
  expect("kernels", scrape.sum("coppice_jupyter_kernels"), 0);
  expect("pauses", scrape.sum("coppice_sandboxes_pauses_total"), tally.least("pauses"), tally.most("pauses"));
  expect(
    "resumptions",
    scrape.sum("coppice_sandboxes_resumptions_total"),
    tally.least("resumptions"),
    tally.most("resumptions"),
  );
  for (const name of [
    "coppice_sandboxes_destroy_failures_total",
    "coppice_sandboxes_pause_failures_total",
    "coppice_commands_log_failures_total",
    "coppice_commands_log_dropped_bytes_total",
    "coppice_jupyter_kernel_start_failures_total",
    "coppice_access_audit_lost_total",
  ]) {
    expect(name, scrape.sum(name), 0);
  }
  // A request for a sandbox that is gone gets 502; one whose sandbox ends meanwhile gets 503.
  faults.push(...scrape.describe("coppice_http_requests_total", /status="5(?!0[23])/));
  return faults;
}
