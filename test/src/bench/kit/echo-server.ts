import { createServer } from "node:http";
import type { AddressInfo } from "node:net";

// A program of its own: what listens on the port that is measured directly and through the server.
// `/` answers a word, `/echo` what it is sent.

const server = createServer((request, response) => {
  if (request.url === "/echo") request.pipe(response);
  else response.end("hello");
});
server.listen(0, "127.0.0.1", () => console.log((server.address() as AddressInfo).port));
