import type { ChannelName, KernelChannels, KernelChannelsOptions } from "./kernel-channels.js";
import { ZmtpChannel } from "./zmtp-channel.js";
import { ZmtpError } from "./zmtp.js";

/** ZMTP over a sandbox's streams. Unread messages stay in the connection, so that the kernel waits. */
export class ZmtpChannels implements KernelChannels {
  readonly #closed = new AbortController();
  readonly #channels: Readonly<Record<ChannelName, ZmtpChannel>>;

  constructor({ ports, dial, held, identity, maxMessageBytes, onLost }: KernelChannelsOptions) {
    const open = (name: ChannelName): ZmtpChannel =>
      new ZmtpChannel({
        ...(name === "iopub" ? { socketType: "SUB", identity: "" } : { socketType: "DEALER", identity }),
        dial: (signal) => dial(ports[name], signal),
        maxMessageBytes,
        held,
        onLost: () => onLost(name),
        closed: this.#closed.signal,
      });
    this.#channels = {
      shell: open("shell"),
      control: open("control"),
      // With the same identity as shell: a kernel sends its input requests to the sender of the cell.
      stdin: open("stdin"),
      iopub: open("iopub"),
    };
  }

  send(channel: Exclude<ChannelName, "iopub">, frames: readonly Buffer[]): Promise<void> {
    return this.#channels[channel].send(frames);
  }

  receive(channel: ChannelName): AsyncIterable<readonly Buffer[]> {
    return this.#channels[channel].receive();
  }

  async close(): Promise<void> {
    this.#closed.abort(new ZmtpError("the channels are closed"));
  }
}
