// Numbers exactly as the realm sent them. JavaScript has one kind of number: 1.0 would come back
// as 1, and what is larger than 2^53 rounded. Here such numbers keep their own digits.

const keeps = typeof JSON.rawJSON === "function";

export const isRaw = (value) => keeps && JSON.isRawJSON(value);

/** JSON whose numbers can be written again digit by digit. */
export function exactly(text) {
  return JSON.parse(text, (key, value, context) => {
    if (typeof value !== "number" || !context?.source || String(value) === context.source) return value;
    return keeps ? JSON.rawJSON(context.source) : value;
  });
}

/** A number that is written as it was typed. */
export const raw = (source) => (keeps ? JSON.rawJSON(source) : Number(source));

/** A value of a property as text. */
export function shown(value) {
  if (value === null) return "null";
  if (isRaw(value)) return value.rawJSON;
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** What kind of value it is, in a reader's words; the column's own type says more where it is known. */
export function kindOf(value) {
  if (value === null) return "null";
  if (isRaw(value)) return /[.eE]/.test(value.rawJSON) ? "decimal" : "integer";
  if (Array.isArray(value)) return "list";
  if (typeof value === "number") return Number.isInteger(value) ? "integer" : "decimal";
  return { string: "text", boolean: "true or false", object: "object" }[typeof value];
}
