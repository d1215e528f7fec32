// The one way to the realm: its REST interface. An answer that is no success becomes an `ApiError`
// with the realm's own code and words.

import { exactly } from "./exact.js";

const BASE = "/api/v1";
const SAFE = new Set(["GET", "HEAD"]);

export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** The path of something with a name; slashes in names are no steps of the path. */
export const path = (...parts) => `/${parts.map(encodeURIComponent).join("/")}`;

let token = "";
let onAway = () => {};

/** What to do when the realm says that one has to log in first. */
export function whenLoggedOut(act) { onAway = act; }
export function useToken(value) { token = value ?? ""; }

function address(route, query) {
  const given = Object.entries(query ?? {}).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return `${BASE}${route}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
}

async function refused(answer) {
  let code = "", message = "";
  try {
    const { error } = await answer.json();
    code = String(error.code ?? "");
    message = String(error.message ?? "");
  } catch { /* not the realm's words: a proxy's, or none */ }
  if (answer.status === 401) onAway();
  return new ApiError(answer.status, code || `HTTP ${answer.status}`, message || answer.statusText || "The realm refused the request.");
}

async function ask(method, route, { query, body, type, signal, accept } = {}) {
  const headers = { Accept: accept ?? "application/json" };
  if (body !== undefined) headers["Content-Type"] = type ?? "application/json";
  if (!SAFE.has(method) && token) headers["X-CSRF-Token"] = token;
  let answer;
  try {
    answer = await fetch(address(route, query), {
      method, headers, signal, credentials: "same-origin",
      body: body === undefined ? undefined : type ? body : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "not-connected", "The realm does not answer. Is it running?");
  }
  if (!answer.ok) throw await refused(answer);
  return answer;
}

async function content(answer, read = parse) {
  const text = await answer.text();
  return text ? read(text) : null;
}

/** JSON, with integers too large for a JavaScript number kept as text, digit by digit. */
export function parse(text) {
  return JSON.parse(text, (key, value, context) =>
    typeof value === "number" && !Number.isSafeInteger(value) && context && /^-?\d+$/.test(context.source) ? context.source : value);
}

/** As `get`, with each number as it was written. */
export const getExact = async (route, query, signal) => content(await ask("GET", route, { query, signal }), exactly);
/** Where a file is to be had; a browser takes it by itself, with the session it has. */
export const fileAt = (route) => address(route);
/** A file as it is, however long. */
export const upload = async (route, file, type, query) => content(await ask("POST", route, { query, body: file, type }));
export const get = async (route, query, signal) => content(await ask("GET", route, { query, signal }));
export const post = async (route, body, query) => content(await ask("POST", route, { body: body ?? {}, query }));
export const put = async (route, body) => content(await ask("PUT", route, { body }));
export const patch = async (route, body) => content(await ask("PATCH", route, { body }));
export const remove = async (route, query) => content(await ask("DELETE", route, { query }));

/** Every item of a list, page by page. */
export async function all(route, query, signal) {
  const items = [];
  for (let after = null; ;) {
    const page = await get(route, { limit: 1000, ...query, after }, signal);
    items.push(...page.items);
    after = page.next;
    if (after === null || after === undefined || !page.items.length) return items;
  }
}

/** Server-sent events until the signal ends them; unlike an EventSource it tells why it was refused. */
export async function stream(route, query, signal, onEvent, onOpen = () => {}) {
  const answer = await ask("GET", route, { query, signal, accept: "text/event-stream" });
  onOpen();
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += value.replaceAll("\r", "");
    const blocks = rest.split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      let name = "message";
      const data = [];
      for (const line of block.split("\n")) {
        if (line.startsWith("event:")) name = line.slice(6).trim();
        else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
      }
      if (data.length) onEvent(name, parse(data.join("\n")));
    }
  }
}
