// The one door to the vendored view library: the console's modules import it from here.
//
// `html` makes text of everything between its tags: a name or an event's data never becomes markup.
import { h } from "./vendor/preact.js";
import htm from "./vendor/htm.js";

export { Component, createContext, render } from "./vendor/preact.js";
export {
  useCallback, useContext, useEffect, useErrorBoundary, useLayoutEffect, useMemo, useRef, useState,
} from "./vendor/preact-hooks.js";
export const html = htm.bind(h);
