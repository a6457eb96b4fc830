import { createReadStream, createWriteStream } from "node:fs";
import { type AddressInfo, createServer, type Socket } from "node:net";
import { join } from "node:path";
import { pipeline } from "node:stream/promises";

// A program of its own: what files over a socket cost when nothing else is done. It takes one connection
// per file: `r` and a name is answered with the file, `w` and a name is followed by it.

const [, , directory = "."] = process.argv;

async function serve(socket: Socket): Promise<void> {
  const head = await readHead(socket);
  const path = join(directory, head.name);
  if (head.verb === "r") await pipeline(createReadStream(path), socket);
  else {
    await pipeline(socket, createWriteStream(path), { end: true });
    socket.end("ok");
  }
}

/** The first line, exactly: what follows it belongs to the file. */
async function readHead(socket: Socket): Promise<{ readonly verb: string; readonly name: string }> {
  const { promise, resolve } = Promise.withResolvers<string>();
  let head = "";
  const onReadable = (): void => {
    for (let byte = socket.read(1) as Buffer | null; byte !== null; byte = socket.read(1) as Buffer | null) {
      if (byte[0] === 0x0a) return resolve(head);
      head += byte.toString("latin1");
    }
  };
  socket.on("readable", onReadable);
  const line = await promise;
  socket.off("readable", onReadable);
  return { verb: line.charAt(0), name: line.slice(1) };
}

const server = createServer({ allowHalfOpen: true, noDelay: true }, (socket) => {
  socket.on("error", () => undefined);
  serve(socket).catch(() => socket.destroy());
});
server.listen(0, "127.0.0.1", () => console.log((server.address() as AddressInfo).port));
