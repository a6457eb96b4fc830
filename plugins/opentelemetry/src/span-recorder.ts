import { AsyncLocalStorage } from "node:async_hooks";
import { subscribe, tracingChannel, unsubscribe } from "node:diagnostics_channel";
import { messageOf, type TracedWork } from "@coppice/core";
import type { Context, Span, TextMapPropagator, Tracer } from "@opentelemetry/api";
import type { Sdk } from "./load-sdk.js";

const HEADERS = "coppice:trace-headers";
const REQUEST = "request";

interface OpenSpan {
  readonly span: Span;
  readonly parent: OpenSpan | undefined;
  readonly beganAtMs: number;
  /** Time in which parts of it ran: they run one after the other. */
  partsMs: number;
  isEnded: boolean;
}

export interface SpanRecorderOptions {
  readonly api: Sdk["api"];
  readonly tracer: Tracer;
  readonly propagator: TextMapPropagator;
}

/** Makes a span of each piece of work that core publishes, below that of the work that it is a part of. */
export class SpanRecorder {
  readonly #options: SpanRecorderOptions;
  readonly #work = tracingChannel<unknown, TracedWork>("coppice:work");
  readonly #current = new AsyncLocalStorage<OpenSpan>();
  readonly #open = new WeakMap<TracedWork, OpenSpan>();
  readonly #onEnd = (work: unknown): void => this.#end(work as TracedWork);
  readonly #fill = (headers: unknown): void => this.#inject(headers as Record<string, string>);

  constructor(options: SpanRecorderOptions) {
    this.#options = options;
  }

  start(): void {
    this.#work.start.bindStore(this.#current, (work) => this.#begin(work));
    this.#work.asyncEnd.subscribe(this.#onEnd);
    subscribe(HEADERS, this.#fill);
  }

  stop(): void {
    this.#work.asyncEnd.unsubscribe(this.#onEnd);
    this.#work.start.unbindStore(this.#current);
    unsubscribe(HEADERS, this.#fill);
  }

  #begin(work: TracedWork): OpenSpan {
    const { api, tracer, propagator } = this.#options;
    const asked = work.headers;
    const current = asked === undefined ? this.#current.getStore() : undefined;
    // What is done in the background, or after a request, has a trace of its own that names the other one.
    const isPart = current?.isEnded === false && work.isApart !== true;
    const parent = isPart ? current : undefined;
    const links = current === undefined || isPart ? [] : [{ context: current.span.spanContext() }];
    const kind = asked === undefined ? api.SpanKind.INTERNAL : api.SpanKind.SERVER;
    let context: Context = api.ROOT_CONTEXT;
    if (parent !== undefined) context = api.trace.setSpan(context, parent.span);
    else if (asked !== undefined) context = propagator.extract(context, asked, api.defaultTextMapGetter);
    const span = tracer.startSpan(work.name, { kind, links, attributes: work.attributes }, context);
    const open = { span, parent, beganAtMs: performance.now(), partsMs: 0, isEnded: false };
    this.#open.set(work, open);
    return open;
  }

  #end(work: TracedWork): void {
    const open = this.#open.get(work);
    if (open === undefined) return;
    const { api } = this.#options;
    const { span, parent } = open;
    const tookMs = performance.now() - open.beganAtMs;
    open.isEnded = true;
    if (parent !== undefined) parent.partsMs += tookMs;
    span.setAttributes(work.attributes);
    if (open.partsMs > 0) span.setAttribute("coppice.own_ms", Math.max(0, tookMs - open.partsMs));
    const {
      "http.request.method": method,
      "http.route": route,
      "http.response.status_code": status,
    } = work.attributes;
    if (work.name === REQUEST) span.updateName(`${method} ${route}`);
    if (work.error !== undefined)
      span.setStatus({ code: api.SpanStatusCode.ERROR, message: messageOf(work.error) });
    else if (Number(status) >= 500) span.setStatus({ code: api.SpanStatusCode.ERROR });
    span.end();
  }

  #inject(headers: Record<string, string>): void {
    const { api, propagator } = this.#options;
    const current = this.#current.getStore();
    if (current === undefined || current.isEnded) return;
    const context = api.trace.setSpan(api.ROOT_CONTEXT, current.span);
    propagator.inject(context, headers, api.defaultTextMapSetter);
  }
}
