// Where the reader is: the part of the address behind the #, as names and a query.
import { useLayoutEffect, useState } from "./view.js";

/** The address of a page; names may have any characters, slashes too. */
export function to(...parts) {
  const last = parts.at(-1);
  const query = typeof last === "object" ? parts.pop() : null;
  const path = `#/${parts.map(encodeURIComponent).join("/")}`;
  const given = Object.entries(query ?? {}).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

export function go(...parts) {
  location.hash = to(...parts);
}

// The address that the page shown now was drawn for, or has noted itself.
let known = location.hash;

/**
 * Note something in the address without a new step in the history: a selector, a page.
 * An address that the reader has left meanwhile takes no note: the page of the new one is on its way.
 */
export function note(...parts) {
  if (location.hash !== known) return;
  history.replaceState(null, "", to(...parts));
  known = location.hash;
}

function decoded(part) {
  try { return decodeURIComponent(part); } catch { return part; }
}

function read() {
  known = location.hash;
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  return { parts: path.split("/").filter(Boolean).map(decoded), query: Object.fromEntries(new URLSearchParams(query)), at: location.hash };
}

export function useRoute() {
  const [route, setRoute] = useState(read);
  // Before the browser goes on: an address that changes right after the first drawing is seen, too.
  useLayoutEffect(() => {
    const look = () => setRoute(read());
    addEventListener("hashchange", look);
    return () => removeEventListener("hashchange", look);
  }, []);
  return route;
}
