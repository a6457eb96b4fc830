import { createServer } from "node:http";
import type { AddressInfo } from "node:net";

// A separate program on the port that is measured directly and through the server. `/` answers with a word, `/echo`
// with the request's body.

const server = createServer((request, response) => {
  if (request.url === "/echo") request.pipe(response);
  else response.end("hello");
});
server.listen(0, "127.0.0.1", () => console.log((server.address() as AddressInfo).port));
