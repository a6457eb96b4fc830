import assert from "node:assert/strict";
import { generateKeyPairSync } from "node:crypto";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { z } from "zod";
import { type Cluster, ETCDS, startEtcd } from "../testing/start-etcd.js";
import { namesOf, storeCases, take } from "../testing/store-cases.js";
import { EtcdClient, EtcdRefusal } from "./etcd/etcd-client.js";
import { encode } from "./etcd/etcd-messages.js";
import { EtcdStore } from "./etcd/etcd-store.js";

const PREFIX = "/coppice/";
/** What etcd counts in seconds. */
const TOKEN_TTL_S = 1;
const ROOT = { user: "root", password: "of root" };
const FLEET = { user: "fleet", password: "of the fleet" };

async function call(client: EtcdClient, path: string, body: object): Promise<void> {
  await client.call(path, body, { schema: z.unknown(), canRepeat: true });
}

/** Makes a user that may use the keys of a fleet and no others, and lets nobody in without a user. */
async function enableUsers(client: EtcdClient): Promise<void> {
  for (const { user: name, password } of [ROOT, FLEET]) {
    await call(client, "auth/user/add", { name, password });
    await call(client, "auth/role/add", { name });
    await call(client, "auth/user/grant", { user: name, role: name });
  }
  const perm = { permType: "READWRITE", key: encode(PREFIX), range_end: encode("/coppice0") };
  await call(client, "auth/role/grant", { name: FLEET.user, perm });
  await call(client, "auth/enable", {});
}

/** `--auth-token` of tokens that last so long, and name the state of users and roles that they were made in. */
async function signedTokens(directory: string): Promise<string> {
  const { privateKey, publicKey } = generateKeyPairSync("rsa", {
    modulusLength: 2048,
    publicKeyEncoding: { type: "spki", format: "pem" },
    privateKeyEncoding: { type: "pkcs1", format: "pem" },
  });
  const files = { private: join(directory, "private.pem"), public: join(directory, "public.pem") };
  await writeFile(files.private, privateKey);
  await writeFile(files.public, publicKey);
  return `jwt,sign-method=RS256,priv-key=${files.private},pub-key=${files.public},ttl=${TOKEN_TTL_S}s`;
}

for (const { name, program, skip } of ETCDS)
  for (const tokens of ["simple", "signed"])
    describe(
      `the store of a fleet in ${name} with users and ${tokens} tokens`,
      { skip, concurrency: 1 },
      () => {
        let directory: string;
        let etcd: Cluster;
        const clients: EtcdClient[] = [];
        const clientOf = (login: typeof ROOT | undefined): EtcdClient => {
          const client = new EtcdClient({ endpoints: etcd.endpoints, login, tls: {}, timeoutMs: 5000 });
          clients.push(client);
          return client;
        };
        const storeOf = (login: typeof ROOT | undefined, prefix = PREFIX): EtcdStore =>
          new EtcdStore({ client: clientOf(login), prefix, watchSilenceMs: 200 });
        const open = async (): Promise<EtcdStore> => storeOf(FLEET);

        before(async () => {
          directory = await mkdtemp(join(tmpdir(), "coppice-test-"));
          const args =
            tokens === "signed"
              ? ["--auth-token", await signedTokens(directory)]
              : ["--auth-token-ttl", String(TOKEN_TTL_S)];
          etcd = await startEtcd({ program, args: ["--bcrypt-cost", "4", ...args] });
          await enableUsers(clientOf(undefined));
        });
        after(async () => {
          for (const client of clients) client.close();
          await etcd[Symbol.asyncDispose]();
          await rm(directory, { recursive: true });
        });
        storeCases(open);

        it("is refused for a wrong password, for no user, and outside of the prefix, each in etcd's words", async () => {
          const refused = async (store: EtcdStore, message: RegExp): Promise<void> =>
            assert.rejects(
              store.get("a"),
              (error) => error instanceof EtcdRefusal && message.test(error.message),
            );
          await refused(storeOf({ ...FLEET, password: "mistyped" }), /invalid user ID or password/);
          await refused(storeOf(undefined), /user name is empty/);
          const elsewhere = new EtcdStore({
            client: clientOf(FLEET),
            prefix: "/other/",
            watchSilenceMs: 1000,
          });
          await refused(elsewhere, /permission denied/);
          const watching = take(elsewhere.watch("a/", 0, new AbortController().signal), 1);
          await assert.rejects(watching, /permission denied/);
        });

        it("goes on after its token has expired, each use of it alone", async (t) => {
          const [watching, renewing, writing] = [storeOf(FLEET), storeOf(FLEET), storeOf(FLEET)];
          const lease = await renewing.grant(20_000);
          const { revision } = await watching.list("t/");
          const stop = new AbortController();
          t.after(() => stop.abort());
          const taken = take(watching.watch("t/", revision, stop.signal), 1);
          await writing.list("t/");
          await pause(TOKEN_TTL_S * 2500);
          assert.ok(await writing.commit([], [{ put: "t/one", value: "1" }]));
          assert.equal(await renewing.renew(lease), true);
          assert.deepEqual(namesOf(await taken), ["t/one=1"]);
        });

        it("goes on after users and roles were changed", async () => {
          const store = storeOf(FLEET);
          await store.list("u/");
          await call(clientOf(ROOT), "auth/role/add", { name: "another" });
          assert.ok(await store.commit([], [{ put: "u/one", value: "1" }]));
        });

        it("goes on after its member has restarted, which forgets its tokens", async (t) => {
          const store = storeOf(FLEET);
          const { revision } = await store.list("r/");
          const stop = new AbortController();
          t.after(() => stop.abort());
          const taken = take(store.watch("r/", revision, stop.signal), 1);
          await etcd.members[0]?.kill();
          await etcd.members[0]?.start();
          assert.ok(await store.commit([], [{ put: "r/one", value: "1" }]));
          assert.deepEqual(namesOf(await taken), ["r/one=1"]);
        });
      },
    );
