// The keyboard: single keys and pairs of them, never while one types.
import { html, useEffect, useState } from "./view.js";
import { Dialog } from "./parts.js";
import { go } from "./router.js";

const PLACES = { o: [""], d: ["dead"], j: ["joins"], t: ["patterns"], s: ["scheduled"], p: ["pipelines"], c: ["connections"], m: ["topics"], l: ["cluster"], a: ["access"] };

const LISTED = [
  ["Everywhere", [
    [["/"], "focus the filter of the tree"],
    [["?"], "show these keys"],
    [["n"], "new channel or queue"],
    [["g", "o"], "overview"],
    [["g", "d"], "dead events"],
    [["g", "j"], "joins"],
    [["g", "t"], "patterns"],
    [["g", "s"], "scheduled events"],
    [["g", "p"], "pipelines"],
    [["g", "c"], "connections"],
    [["g", "m"], "MQTT topics"],
    [["g", "l"], "cluster"],
    [["g", "a"], "access"],
    [["Esc"], "close a dialog, leave the filter"],
  ]],
  ["In the tree", [
    [["↑", "↓"], "previous row, next row"],
    [["→", "←"], "expand, collapse"],
    [["Enter"], "open"],
  ]],
  ["On a channel or queue", [
    [["["], "previous tab"],
    [["]"], "next tab"],
  ]],
  ["In a list of events", [
    [["↑", "↓"], "previous event, next event"],
    [["Enter"], "show the event in full"],
    [["Space"], "pause or resume the live tail"],
  ]],
];

const typing = (target) => target instanceof Element && (target.matches("input, textarea, select") || target.isContentEditable);

function turnTab(step) {
  const tabs = [...document.querySelectorAll(".tabs a")];
  const at = tabs.findIndex((tab) => tab.getAttribute("aria-current") === "page");
  const next = tabs[at + step];
  if (next) { location.hash = next.getAttribute("href"); next.focus(); }
}

export function Keys({ open, setOpen, onFilter }) {
  const [, setFirst] = useState("");
  useEffect(() => {
    let first = "", timer = 0;
    const press = (event) => {
      if (event.defaultPrevented || event.altKey || event.ctrlKey || event.metaKey || typing(event.target)) return;
      if (document.querySelector("dialog[open]")) return;
      if (first === "g") {
        first = "";
        const place = PLACES[event.key];
        if (place) { event.preventDefault(); go(...place); }
        return;
      }
      const acts = { "/": onFilter, "?": () => setOpen(true), n: () => go("new"), "[": () => turnTab(-1), "]": () => turnTab(1) };
      if (event.key === "g") {
        first = "g";
        clearTimeout(timer);
        timer = setTimeout(() => { first = ""; setFirst(""); }, 1500);
      } else if (acts[event.key]) {
        event.preventDefault();
        acts[event.key]();
      }
    };
    addEventListener("keydown", press);
    return () => { removeEventListener("keydown", press); clearTimeout(timer); };
  }, [onFilter, setOpen]);
  if (!open) return null;
  return html`<${Dialog} title="Keys" wide onClose=${() => setOpen(false)}><div class="columns">
    ${LISTED.map(([where, rows]) => html`<div key=${where}><h3>${where}</h3><dl class="facts">${rows.map(([keys, what]) =>
      html`<div key=${what}><dt>${keys.map((key) => html`<kbd key=${key}>${key}</kbd> `)}</dt><dd>${what}</dd></div>`)}</dl></div>`)}
    </div></${Dialog}>`;
}
