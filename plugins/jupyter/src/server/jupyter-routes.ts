import {
  HttpError,
  readJsonBody,
  type RequestCarrier,
  type Router,
  SandboxError,
  targetOf,
} from "@coppice/core";
import { z } from "zod";
import type { CodeContext } from "../contexts/code-context.js";
import type { NotebookSession } from "../kernel/kernel-notes.js";
import type { InstalledKernel } from "../programs/kernel-program.js";
import { type Languages, UnknownLanguageError } from "../programs/languages.js";
import { REASONS } from "../reasons.js";
import type { FindKernels, SandboxKernels } from "./sandbox-kernels.js";

interface JupyterRoutesOptions {
  readonly prefixes: readonly string[];
  readonly kernelsOf: FindKernels;
  readonly languages: Pick<Languages, "own" | "installed">;
  readonly maxBodyBytes: number;
}

const nameText = z.string().max(256).nullish();
const pathText = z.string().max(4096);
const startKernelBody = z.object({ name: nameText, path: pathText.nullish() });
const kernelChoice = z.object({ id: nameText, name: nameText }).nullish();
/** Clients before JupyterLab put the path into `notebook`. */
const notebookChoice = z.object({ path: pathText, name: pathText.nullish() }).nullish();
const sessionBody = z
  .object({
    path: pathText.nullish(),
    name: pathText.nullish(),
    type: nameText,
    kernel: kernelChoice,
    notebook: notebookChoice,
  })
  .transform(({ path, name, type, kernel, notebook }) => ({
    path: path ?? notebook?.path,
    name: name ?? notebook?.name ?? undefined,
    type: type ?? undefined,
    kernelId: kernel?.id ?? undefined,
    kernelName: kernel?.name ?? undefined,
  }));

/** Reported version of Jupyter Server. */
const SERVER_VERSION = "2.14.0";

type RouteContext = Parameters<Parameters<Router["use"]>[0]>[0];

/** Jupyter's REST interface to the kernels of a sandbox: at the root where the sandbox is known, and below its path. */
export function mountJupyter(
  router: Router,
  { prefixes, kernelsOf, languages, maxBodyBytes }: JupyterRoutesOptions,
): void {
  const specsOf = async (ctx: RequestCarrier) => [
    ...languages.own.map(ownSpecOf),
    ...(await languages.installed(targetOf(ctx).runtime)).map(specOf),
  ];
  const bodyOptions = { limitBytes: maxBodyBytes, empty: {} };

  for (const prefix of prefixes) {
    const at = (path: string): string => `${prefix}/api${path}`;

    /** @param answer its result is the body; without one the status is 204. */
    const route = (
      method: "get" | "post" | "patch" | "delete",
      path: string,
      answer: (
        kernels: SandboxKernels,
        ctx: RouteContext,
        id: string,
      ) => object | void | Promise<object | void>,
    ): void => {
      router[method](at(path), async (ctx) => {
        const body = await answer(await kernelsOf(targetOf(ctx)), ctx, ctx.params["id"] ?? "");
        if (body === undefined) ctx.status = 204;
        else ctx.body = body;
      });
    };

    router.get(at(""), (ctx) => {
      ctx.body = { version: SERVER_VERSION };
    });

    route("get", "/status", async (kernels) => {
      const models = (await kernels.list()).map((context) => kernelModel(kernels, context));
      return {
        started: new Date(kernels.startedAtMs).toISOString(),
        last_activity: models.map((model) => model.last_activity).reduce((a, b) => (a > b ? a : b)),
        connections: models.reduce((sum, model) => sum + model.connections, 0),
        kernels: models.length,
      };
    });

    router.get(at("/kernelspecs"), async (ctx) => {
      const specs = await specsOf(ctx);
      const kernelspecs = Object.fromEntries(specs.map((spec) => [spec.name, spec]));
      ctx.body = { default: specs[0]?.name, kernelspecs };
    });

    router.get(at("/kernelspecs/:name"), async (ctx) => {
      const name = ctx.params["name"] ?? "";
      const spec = (await specsOf(ctx)).find((known) => known.name === name);
      if (spec === undefined)
        throw new SandboxError(REASONS.kernel_spec_not_found, `Kernel spec ${name.slice(0, 100)} not found`);
      ctx.body = spec;
    });

    route("get", "/kernels", async (kernels) =>
      (await kernels.list()).map((context) => kernelModel(kernels, context)),
    );

    route("post", "/kernels", async (kernels, ctx) => {
      const { name, path } = await readJsonBody(ctx.req, startKernelBody, bodyOptions);
      const context = await starting(() => kernels.start(name ?? undefined, path ?? undefined));
      ctx.status = 201;
      ctx.set("location", `${rootOf(ctx.path, "/api/kernels")}/api/kernels/${context.id}`);
      return kernelModel(kernels, context);
    });

    route("get", "/kernels/:id", (kernels, _, id) => kernelModel(kernels, kernelNamed(kernels, id)));

    route("delete", "/kernels/:id", (kernels, _, id) => kernels.remove(kernelNamed(kernels, id).id));

    route("post", "/kernels/:id/interrupt", (kernels, _, id) =>
      kernels.clientsOf(kernelNamed(kernels, id)).interrupt(),
    );

    route("post", "/kernels/:id/restart", async (kernels, _, id) => {
      const context = kernelNamed(kernels, id);
      await starting(() => kernels.clientsOf(context).restart());
      return kernelModel(kernels, context);
    });

    route("get", "/sessions", (kernels) =>
      kernels.sessions().map((session) => sessionModel(kernels, session)),
    );

    route("post", "/sessions", async (kernels, ctx) => {
      const body = await readJsonBody(ctx.req, sessionBody, bodyOptions);
      const { path, name = "", type = "notebook" } = body;
      if (path === undefined)
        throw new SandboxError("request_invalid", "validation error: path: Field required");
      const session = await starting(() => kernels.open({ ...body, path, name, type }));
      ctx.status = 201;
      ctx.set("location", `${rootOf(ctx.path, "/api/sessions")}/api/sessions/${session.id}`);
      return sessionModel(kernels, session);
    });

    route("get", "/sessions/:id", (kernels, _, id) => sessionModel(kernels, kernels.session(id)));

    route("patch", "/sessions/:id", async (kernels, ctx, id) => {
      const body = await readJsonBody(ctx.req, sessionBody, bodyOptions);
      return sessionModel(kernels, await starting(() => kernels.change(id, body)));
    });

    route("delete", "/sessions/:id", (kernels, _, id) => kernels.close(id));
  }
}

/** The context with that id. @throws SandboxError not_found in Jupyter's words. */
export function kernelNamed(kernels: SandboxKernels, id: string): CodeContext {
  try {
    return kernels.get(id);
  } catch (error) {
    const text = `Kernel does not exist: ${id.slice(0, 100)}`;
    throw new SandboxError(REASONS.kernel_not_found, text, { cause: error });
  }
}

function kernelModel(kernels: SandboxKernels, context: CodeContext) {
  const clients = kernels.clientsOf(context);
  return {
    id: context.id,
    name: specNameOf(context.language),
    last_activity: new Date(clients.lastActivityMs).toISOString(),
    execution_state: clients.state,
    connections: clients.connections,
  };
}

function sessionModel(kernels: SandboxKernels, { id, path, name, type, kernelId }: NotebookSession): object {
  const kernel = kernelModel(kernels, kernels.get(kernelId));
  return { id, path, name, type, kernel, notebook: { path, name } };
}

/** The server's root path in this request. */
function rootOf(path: string, collection: string): string {
  return path.slice(0, path.lastIndexOf(collection));
}

async function starting<T>(start: () => Promise<T>): Promise<T> {
  try {
    return await start();
  } catch (error) {
    if (!(error instanceof SandboxError)) throw error;
    const { code, message } = error;
    if (error instanceof UnknownLanguageError)
      throw new HttpError(501, message, {
        reason: error,
        body: JSON.parse(message) as Record<string, unknown>,
      });
    // A kernel that does not start is not the client's mistake.
    if (code === "failed_precondition") throw new HttpError(500, message, { reason: error });
    throw error;
  }
}

/** Jupyter's kernel name of `python`. */
const PYTHON = "python3";

/** The kernel name of a language; an installed kernel has its own. */
function specNameOf(language: string): string {
  return language === "python" ? PYTHON : language;
}

function ownSpecOf(language: string) {
  const displayName = language === "python" ? "Python 3 (ipykernel)" : language;
  return specOf({ name: specNameOf(language), displayName, language });
}

type Named = Pick<InstalledKernel, "name" | "displayName" | "language">;

/** Jupyter's description of a kernel. */
function specOf({ name, displayName, language }: Named) {
  return {
    name,
    resources: {},
    spec: {
      // Never executed: the server starts kernels itself.
      argv: ["coppice", "kernel", name, "{connection_file}"],
      env: {},
      display_name: displayName,
      language,
      interrupt_mode: "message",
      // JupyterLab asks before there is a kernel, which then reports whether it finds debugpy.
      metadata: { debugger: name === PYTHON },
    },
  };
}
