export { startTestServer, type TestServer, type TestServerOptions } from "./testing/start-test-server.js";
