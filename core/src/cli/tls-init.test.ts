import assert from "node:assert/strict";
import { X509Certificate } from "node:crypto";
import { once } from "node:events";
import { mkdtemp, readFile, rm, stat, writeFile } from "node:fs/promises";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, it } from "node:test";
import { connect, createServer } from "node:tls";
import { initTls } from "./tls.js";

describe("certificates for development", () => {
  let directory: string;
  beforeEach(async () => {
    directory = await mkdtemp(join(tmpdir(), "coppice-tls-"));
  });
  afterEach(() => rm(directory, { recursive: true, force: true }));
  const read = (name: string): Promise<string> => readFile(join(directory, name), "utf8");

  it("are valid for the domain and its wildcard, to clients that trust the authority", async () => {
    assert.deepEqual(await initTls("dev.localhost", directory), { isNewAuthority: true });
    const [ca, cert, key] = await Promise.all(["ca.pem", "cert.pem", "key.pem"].map(read));
    assert.ok(ca && cert && key);
    const certificate = new X509Certificate(cert);
    assert.equal(certificate.checkIssued(new X509Certificate(ca)), true);
    assert.ok(certificate.validToDate.getTime() - certificate.validFromDate.getTime() < 826 * 24 * 3600_000);

    const server = createServer({ cert, key }, (socket) => socket.end()).listen(0, "127.0.0.1");
    await once(server, "listening");
    try {
      const { port } = server.address() as AddressInfo;
      const handshake = async (servername: string, trusted: string | undefined): Promise<string> => {
        const socket = connect({ port, host: "127.0.0.1", servername, ...(trusted && { ca: trusted }) });
        try {
          await once(socket, "secureConnect");
          return "trusted";
        } catch (error) {
          return String((error as NodeJS.ErrnoException).code);
        } finally {
          socket.destroy();
        }
      };
      assert.equal(await handshake("dev.localhost", ca), "trusted");
      assert.equal(await handshake("49983-iabc.dev.localhost", ca), "trusted");
      assert.equal(await handshake("a.b.dev.localhost", ca), "ERR_TLS_CERT_ALTNAME_INVALID");
      assert.equal(await handshake("other.localhost", ca), "ERR_TLS_CERT_ALTNAME_INVALID");
      assert.notEqual(await handshake("dev.localhost", undefined), "trusted");
    } finally {
      server.close();
    }
  });

  it("keep their keys to this user, and their authority for the next domain", async () => {
    await initTls("dev.localhost", directory);
    const authority = await read("ca.pem");
    const first = await read("cert.pem");
    for (const name of ["ca-key.pem", "key.pem"]) {
      assert.equal((await stat(join(directory, name))).mode & 0o777, 0o600, name);
    }
    assert.deepEqual(await initTls("other.example", directory), { isNewAuthority: false });
    assert.equal(await read("ca.pem"), authority);
    const second = new X509Certificate(await read("cert.pem"));
    assert.equal(second.subjectAltName, "DNS:other.example, DNS:*.other.example");
    assert.equal(second.verify(new X509Certificate(authority).publicKey), true);
    assert.notEqual(second.serialNumber, new X509Certificate(first).serialNumber);
  });

  it("are valid for an IP address, for servers and clients of it", async () => {
    await initTls("10.0.0.1", directory);
    const { subjectAltName, keyUsage } = new X509Certificate(await read("cert.pem"));
    assert.equal(subjectAltName, "IP Address:10.0.0.1");
    // serverAuth and clientAuth
    assert.deepEqual(keyUsage, ["1.3.6.1.5.5.7.3.1", "1.3.6.1.5.5.7.3.2"]);
  });

  it("are not made for a domain without a possible wildcard, nor by half an authority", async () => {
    for (const domain of ["localhost", "", "UPPER.case", "a..b", "-a.b", "*.a.b", `${"a".repeat(250)}.b`]) {
      await assert.rejects(initTls(domain, directory), /cannot have a wildcard/, domain);
    }
    await writeFile(join(directory, "ca.pem"), "no certificate");
    await assert.rejects(initTls("dev.localhost", directory), /restore or remove both/);
  });
});
