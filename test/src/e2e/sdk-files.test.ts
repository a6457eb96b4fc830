import { after, before } from "node:test";
import { Sandbox } from "e2b";
import type { TestServer } from "@coppice/core/testing";
import { pointSdkAt } from "../harness/point-sdk-at.js";
import { onEachBackend } from "../harness/on-each-backend.js";
import { startFullServer } from "../harness/start-full-server.js";
import { fileScenarios } from "./file-scenarios.js";

onEachBackend("files through the e2b SDK", (backend) => {
  let server: TestServer;
  let sandbox: Sandbox;

  before(async () => {
    server = await startFullServer({ backend });
    pointSdkAt(server.url);
    sandbox = await Sandbox.create();
  });
  after(() => server.stop());

  fileScenarios(() => sandbox);
});
