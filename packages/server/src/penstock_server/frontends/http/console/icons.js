// The icons, drawn on a 16 px square with a 1.5 px line. They decorate: words say what they mean.
import { html } from "./view.js";

const PATHS = {
  overview: "M2.5 9.5h4v4h-4zM2.5 2.5h4v4h-4zM9.5 2.5h4v4h-4zM9.5 9.5h4v4h-4z",
  channel: "M2 5.5c2-2 4-2 6 0s4 2 6 0M2 10.5c2-2 4-2 6 0s4 2 6 0",
  queue: "M2.5 4h11M2.5 8h11M2.5 12h7",
  durable: "M4 2.5h8v11l-4-3-4 3z",
  folder: "M2 4.5v8h12v-7H8L6.5 3.5H2z",
  turn: "M6 3.5 10.5 8 6 12.5",
  dead: "M8 2.5 14.5 13.5h-13zM8 6.5v3.2M8 11.7v.1",
  join: "M3 3.5c0 5 10 4 10 9M10.5 10.5l2.5 2.5 2.3-2.6M3 12.5v-3",
  schedule: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM8 4.8V8l2.3 1.6",
  pipeline: "M2 4.5h4v7h4M10 11.5h4M12.5 9.8l1.7 1.7-1.7 1.7M2 4.5v0",
  connection: "M6 10 10 6M5 7 3.6 8.4a2.8 2.8 0 0 0 4 4L9 11M11 9l1.4-1.4a2.8 2.8 0 0 0-4-4L7 5",
  topics: "M3 2.5v10h3.5M3 7.5h3.5M3 2.5h3.5M9.5 2.5h4M9.5 7.5h4M9.5 12.5h4",
  access: "M3.5 7.5h9v6h-9zM5.5 7.5v-2a2.5 2.5 0 0 1 5 0v2",
  search: "M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10zM10.7 10.7 14 14",
  plus: "M8 3v10M3 8h10",
  close: "M3.5 3.5l9 9M12.5 3.5l-9 9",
  menu: "M2.5 4.5h11M2.5 8h11M2.5 11.5h11",
  sun: "M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM8 1.5v1.2M8 13.3v1.2M1.5 8h1.2M13.3 8h1.2M3.4 3.4l.9.9M11.7 11.7l.9.9M12.6 3.4l-.9.9M4.3 11.7l-.9.9",
  moon: "M13.5 9.6A6 6 0 0 1 6.4 2.5a6 6 0 1 0 7.1 7.1z",
  system: "M8 2v12M8 2a6 6 0 0 1 0 12M8 14A6 6 0 1 0 8 2",
  help: "M6 6a2 2 0 1 1 2.6 1.9c-.4.2-.6.5-.6 1V9.5M8 11.8v.1M8 14.5a6.5 6.5 0 1 0 0-13 6.5 6.5 0 0 0 0 13z",
  person: "M8 8a2.8 2.8 0 1 0 0-5.6A2.8 2.8 0 0 0 8 8zM2.8 13.6c.7-2.6 2.7-4 5.2-4s4.5 1.4 5.2 4",
  copy: "M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3",
  check: "M3 8.5 6.5 12 13 4.5",
  warning: "M8 2.5 14.5 13.5h-13zM8 6.5v3.2M8 11.7v.1",
  error: "M8 14.5a6.5 6.5 0 1 0 0-13 6.5 6.5 0 0 0 0 13zM5.8 5.8l4.4 4.4M10.2 5.8l-4.4 4.4",
  info: "M8 14.5a6.5 6.5 0 1 0 0-13 6.5 6.5 0 0 0 0 13zM8 7.2v4M8 4.8v.1",
  play: "M5 3v10l8-5z",
  pause: "M5 3v10M11 3v10",
  left: "M10 3.5 5.5 8l4.5 4.5",
  right: "M6 3.5 10.5 8 6 12.5",
  again: "M13.5 8a5.5 5.5 0 1 1-1.6-3.9M13.5 2v3h-3",
  out: "M6.5 2.5h-4v11h4M10 5l3 3-3 3M13 8H6",
  send: "M2.5 8 13.5 3l-3 10-3-4zM7.5 9l6-6",
};

export function Icon({ name, size = 16 }) {
  return html`<svg width=${size} height=${size} viewBox="0 0 16 16" fill="none" stroke="currentColor" stroke-width="1.5"
    stroke-linecap="round" stroke-linejoin="round" aria-hidden="true" focusable="false"><path d=${PATHS[name]} /></svg>`;
}

/** The mark: a gate, and what flows out of it. */
export function Mark({ size = 24 }) {
  return html`<svg width=${size} height=${size} viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-linecap="round"
    stroke-linejoin="round" aria-hidden="true" focusable="false">
    <path d="M6 3v18M6 4.5h7a5 5 0 0 1 0 10H6" stroke-width="2.6" />
    <path d="M11 19.5h9M17 16.5l3 3-3 3" stroke-width="1.8" opacity="0.75" /></svg>`;
}
