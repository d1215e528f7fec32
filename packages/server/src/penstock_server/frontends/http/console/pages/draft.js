// What is being written for a channel or queue. It stays until it is published or cleared, however
// often one looks elsewhere meanwhile.
import { fromBase64, toBase64 } from "../format.js";
import { isRaw, kindOf, raw, shown } from "../exact.js";

export const KINDS = [["text", "text"], ["integer", "integer"], ["decimal", "decimal"], ["boolean", "true/false"], ["json", "JSON"], ["null", "null"]];
export const HEADERS = ["correlation_id", "reply_to", "type", "message_id", "application_id", "message_type"];

let lastKey = 0;
export const blankRow = () => ({ key: (lastKey += 1), name: "", kind: "text", value: "" });

export const blank = () => ({
  as: "text", data: "", tag: "", properties: [blankRow()], headers: {}, ttl: "", priority: "", persistent: true, transient: false, deliver_at: "", copyOf: null,
});

const kept = new Map();
const keyOf = (kind, name) => `${kind} ${name}`;

function rowOf(name, value, type) {
  const kind = kindOf(value);
  if (kind === "integer" && /^(double|float|halffloat)/.test(type ?? "")) return { ...blankRow(), name, kind: "decimal", value: `${shown(value)}.0` };
  if (kind === "true or false") return { ...blankRow(), name, kind: "boolean", value: String(value) };
  if (kind === "list" || kind === "object") return { ...blankRow(), name, kind: "json", value: JSON.stringify(value) };
  return { ...blankRow(), name, kind, value: kind === "null" ? "" : shown(value) };
}

export const draft = {
  of(kind, name) {
    if (!kept.has(keyOf(kind, name))) kept.set(keyOf(kind, name), blank());
    return kept.get(keyOf(kind, name));
  },

  keep(kind, name, value) { kept.set(keyOf(kind, name), value); },

  /** Begin with a copy of an event, as its detail tells it. */
  take(kind, name, { event, views }, types) {
    const text = views.text !== undefined && views.text !== null;
    const given = blank();
    given.copyOf = event.event_id;
    given.as = views.protobuf ? "protobuf" : text ? "text" : "base64";
    given.data = views.protobuf ? JSON.stringify(views.protobuf, null, 2) : text ? views.text : views.base64;
    given.tag = event.tag ?? "";
    given.properties = [...Object.entries(event.properties ?? {}).map(([key, value]) => rowOf(key, value, types.get(key))), blankRow()];
    for (const header of HEADERS) if (event.headers?.[header]) given.headers[header] = shown(event.headers[header]);
    given.ttl = event.ttl ? shown(event.ttl) : "";
    given.priority = event.priority !== undefined && shown(event.priority) !== "4" ? shown(event.priority) : "";
    given.persistent = event.persistent !== false;
    draft.keep(kind, name, given);
  },
};

/** A property's value as typed; throws what is wrong with it. */
export function valueOf({ name, kind, value }) {
  const text = value.trim();
  switch (kind) {
    case "text": return value;
    case "integer":
      if (!/^[+-]?\d+$/.test(text)) throw new Error(`${name}: "${text}" is not an integer`);
      return raw(BigInt(text).toString());
    case "decimal": {
      if (text === "" || !Number.isFinite(Number(text))) throw new Error(`${name}: "${text}" is not a number`);
      return raw(/[.eE]/.test(text) && /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/.test(text) ? text : `${Number(text)}${Number.isInteger(Number(text)) && Math.abs(Number(text)) < 1e21 ? ".0" : ""}`);
    }
    case "boolean": return text === "true";
    case "null": return null;
    default:
      try { return JSON.parse(text, (key, inner, context) => (typeof inner === "number" && context?.source && String(inner) !== context.source && !isRaw(inner) ? raw(context.source) : inner)); } catch (error) { throw new Error(`${name}: not valid JSON: ${error.message}`); }
  }
}

const UNITS = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 };

/** A duration as typed, in milliseconds. Throws what is wrong with it. */
function milliseconds(label, text) {
  const [, number, unit] = /^(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?$/.exec(text) ?? [];
  const value = Number(number) * UNITS[unit ?? "ms"];
  if (!Number.isInteger(value)) throw new Error(`${label}: "${text}" is not a duration in whole milliseconds, such as 500ms, 10s, 5m, 1h or 2d`);
  return value;
}

/** What the realm is asked to publish. Throws what is wrong, in the words of the form. */
export function eventOf(given) {
  const event = {};
  if (given.as === "base64") {
    try { fromBase64(given.data); } catch { throw new Error("Data: this is not valid base64"); }
    event.data_base64 = given.data.trim();
  } else if (given.as === "hex") {
    const digits = given.data.replace(/\s+/g, "");
    if (!/^([0-9a-fA-F]{2})*$/.test(digits)) throw new Error("Data: hex consists of pairs of the digits 0 to 9 and a to f");
    event.data_base64 = toBase64(Uint8Array.from(digits.match(/../g) ?? [], (pair) => Number.parseInt(pair, 16)));
  } else if (given.as === "protobuf") event.message = valueOf({ name: "Data", kind: "json", value: given.data });
  else {
    if (given.as === "json") valueOf({ name: "Data", kind: "json", value: given.data });
    event.data = given.data;
  }
  if (given.tag) event.tag = given.tag;
  const rows = given.properties.filter((row) => row.name.trim());
  const twice = rows.find((row, index) => rows.findIndex((each) => each.name.trim() === row.name.trim()) !== index);
  if (twice) throw new Error(`${twice.name}: two properties have this name`);
  const nameless = given.properties.find((row) => !row.name.trim() && row.value.trim());
  if (nameless) throw new Error(`A property with the value "${nameless.value.slice(0, 40)}" has no name`);
  if (rows.length) event.properties = Object.fromEntries(rows.map((row) => [row.name.trim(), valueOf(row)]));
  const headers = Object.entries(given.headers).filter(([, value]) => value !== "");
  if (headers.length) event.headers = Object.fromEntries(headers);
  const ttl = String(given.ttl).trim(), priority = String(given.priority).trim();
  if (ttl) event.ttl = milliseconds("Time to live", ttl);
  if (priority) {
    if (!/^\d+$/.test(priority)) throw new Error(`Priority: "${priority}" is not a whole number`);
    event.priority = Number(priority);
  }
  if (!given.persistent) event.persistent = false;
  if (given.transient) event.transient = true;
  if (given.deliver_at) event.deliver_at = new Date(given.deliver_at).toISOString();
  return event;
}
