// The parts that pages are put together from: buttons, fields, tables, notes, dialogs.
import { html, useCallback, useEffect, useLayoutEffect, useRef, useState } from "./view.js";
import { Icon } from "./icons.js";
import { ApiError } from "./api.js";

// --- what a page asks for -----------------------------------------------------------------------

/** Loads something, again whenever `what` changes; keeps the last answer while it loads. */
export function useLoaded(load, what = []) {
  const [state, setState] = useState({ value: undefined, error: null, loading: true });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const control = new AbortController();
    setState((before) => ({ ...before, loading: true }));
    load(control.signal).then(
      (value) => { if (!control.signal.aborted) setState({ value, error: null, loading: false }); },
      (error) => {
        if (!control.signal.aborted && error.name !== "AbortError") setState((before) => ({ ...before, error, loading: false }));
      },
    );
    return () => control.abort();
  }, [...what, turn]);
  const again = useCallback(() => setTurn((number) => number + 1), []);
  return { ...state, again };
}

/** Loads again every so often while the page is seen. */
export function useRefreshed(load, what, everyMs = 3000) {
  const loaded = useLoaded(load, what);
  useEffect(() => {
    const timer = setInterval(() => { if (!document.hidden) loaded.again(); }, everyMs);
    return () => clearInterval(timer);
  }, [loaded.again, everyMs]);
  return loaded;
}

/** Something the reader asked to have done: whether it runs, what went wrong. */
export function useDoing() {
  const [state, setState] = useState({ busy: false, error: null });
  const act = useCallback(async (work) => {
    setState({ busy: true, error: null });
    try {
      const result = await work();
      setState({ busy: false, error: null });
      return result;
    } catch (error) {
      setState({ busy: false, error });
      return undefined;
    }
  }, []);
  return { ...state, act, clear: useCallback(() => setState({ busy: false, error: null }), []) };
}

/** How wide something is drawn, in pixels inside its padding; 0 before it is. */
export function useWidth() {
  const box = useRef(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.round(entry.contentRect.width)));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  return [box, width];
}

// --- notes ------------------------------------------------------------------------------------

const SIGNS = { bad: "error", warn: "warning", ok: "check", info: "info" };

export function Note({ kind = "info", title, children, slim = false, role }) {
  return html`<div class="note ${kind} ${slim ? "slim" : ""}" role=${role ?? (kind === "bad" ? "alert" : undefined)}>
    <${Icon} name=${SIGNS[kind]} />
    <div class="words">${title && html`<strong>${title} </strong>`}<span>${children}</span></div></div>`;
}

/** A text whose lines belong below each other: the mistake in a selector has a caret below it. */
const lines = (text) => (String(text).includes("\n") ? html`<span class="lines">${text}</span>` : text);

/** A refusal in the realm's own words, with its code. */
export function Refusal({ error, slim }) {
  if (!error) return null;
  const code = error instanceof ApiError ? error.code : "not sent";
  return html`<${Note} kind="bad" title=${code} slim=${slim}>${lines(error.message)}</${Note}>`;
}

let announce = () => {};

/** Say for a few seconds what has been done. */
export function tell(text, kind = "ok") { announce({ text, kind, key: performance.now() }); }

export function Toasts() {
  const [told, setTold] = useState([]);
  useEffect(() => {
    announce = (toast) => {
      setTold((now) => [...now.slice(-2), toast]);
      setTimeout(() => setTold((now) => now.filter((each) => each.key !== toast.key)), 5000);
    };
  }, []);
  return html`<div class="toast-room" role="status" aria-live="polite">
    ${told.map((each) => html`<${Note} key=${each.key} kind=${each.kind}>${each.text}</${Note}>`)}</div>`;
}

/** Where nothing is: what would be here, and how it gets here. */
export function Empty({ title, children, shell, python, acts }) {
  return html`<div class="empty"><h3>${title}</h3>${children && html`<p>${children}</p>`}
    ${shell && html`<${Line} what="Shell" text=${shell} />`}${python && html`<${Line} what="Python" text=${python} />`}
    ${acts && html`<div class="acts">${acts}</div>`}</div>`;
}

/** A line to be copied into a terminal or a program. */
export function Line({ what, text }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    await navigator.clipboard?.writeText(text).catch(() => {});
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return html`<div class="line">${what && html`<span class="what">${what}</span>`}<code>${text}</code>
    <button type="button" class="button plain small icon" onClick=${copy} aria-label="Copy this line" title="Copy">
      <${Icon} name=${copied ? "check" : "copy"} size=${14} /></button></div>`;
}

// --- fields -----------------------------------------------------------------------------------

let lastField = 0;
export function useId(prefix = "f") {
  const id = useRef(null);
  if (id.current === null) { lastField += 1; id.current = `${prefix}${lastField}`; }
  return id.current;
}

/** A labelled field; `wrong` is what the realm or the console has against its content. */
export function Field({ label, help, wrong, value, onInput, type = "text", options, rows, mono, ...more }) {
  const id = useId();
  const told = [help && `${id}h`, wrong && `${id}w`].filter(Boolean).join(" ") || undefined;
  const shared = {
    id, value, "aria-describedby": told, "aria-invalid": wrong ? "true" : undefined, class: mono ? "mono" : undefined,
    onInput: (event) => onInput(event.target.value), autocomplete: "off", spellcheck: false, ...more,
  };
  let input;
  if (options) {
    input = html`<select ...${shared}>${options.map((option) => {
      const [key, text] = Array.isArray(option) ? option : [option, option];
      return html`<option key=${key} value=${key} selected=${key === value}>${text}</option>`;
    })}</select>`;
  } else if (rows) input = html`<textarea ...${shared} rows=${rows}></textarea>`;
  else input = html`<input ...${shared} type=${type} />`;
  return html`<div class="field"><label for=${id}>${label}</label>${input}
    ${help && html`<span class="help" id="${id}h">${help}</span>`}
    ${wrong && html`<span class="wrong" role="alert" id="${id}w">${lines(wrong)}</span>`}</div>`;
}

export function Check({ label, checked, onInput, ...more }) {
  return html`<label class="check"><input type="checkbox" checked=${checked} onChange=${(event) => onInput(event.target.checked)} ...${more} />${label}</label>`;
}

export function Button({ icon, children, kind = "", busy = false, label, ...more }) {
  return html`<button type="button" class="button ${kind}" disabled=${busy} aria-label=${label} title=${label} ...${more}>
    ${icon && html`<${Icon} name=${icon} />`}${children}</button>`;
}

export function Choice({ label, value, options, onPick }) {
  return html`<div class="switch" role="group" aria-label=${label}>${options.map(([key, text, able = true]) => html`<button key=${key} type="button"
    aria-pressed=${String(key === value)} disabled=${!able} onClick=${() => onPick(key)}>${text}</button>`)}</div>`;
}

// --- frames -----------------------------------------------------------------------------------

export function Panel({ title, hint, acts, children, bare = false, id, label }) {
  return html`<section class="panel" id=${id} aria-label=${title ?? label}>
    ${(title || acts) && html`<div class="panel-head"><h2>${title}</h2>${hint && html`<span class="hint">${hint}</span>`}
      ${acts && html`<div class="acts">${acts}</div>`}</div>`}
    ${bare ? children : html`<div class="panel-body ${title ? "" : "even"}">${children}</div>`}</section>`;
}

export function Head({ crumbs = [], folder = "", title, tags, lead, acts }) {
  useEffect(() => { document.title = `${folder}${title} · Penstock`; }, [folder, title]);
  return html`<header class="page-head"><div class="words">
    ${crumbs.length > 0 && html`<nav aria-label="Where this is"><ol class="crumbs">${crumbs.map(([text, href]) =>
      html`<li key=${href ?? text}>${href ? html`<a href=${href}>${text}</a>` : text}</li>`)}</ol></nav>`}
    <div class="row"><h1 tabindex="-1">${folder && html`<span class="folder">${folder}</span>`}${title}</h1>${tags}</div>${lead && html`<p class="lead">${lead}</p>`}</div>
    ${acts && html`<div class="acts">${acts}</div>`}</header>`;
}

export function Tabs({ items, current, label }) {
  return html`<nav class="tabs" aria-label=${label}>${items.map(([key, text, href, number]) => html`<a key=${key} href=${href}
    aria-current=${key === current ? "page" : undefined}>${text}${number !== undefined && html`<span class="count">${number}</span>`}</a>`)}</nav>`;
}

export function Facts({ rows }) {
  return html`<dl class="facts">${rows.filter(Boolean).map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

export function Stat({ label, value, unit, under, swatch, kind }) {
  return html`<div class="stat"><dt>${swatch && html`<i class="swatch ${swatch}"></i>`}${label}</dt>
    <dd>${value}${unit && html`<span class="unit">${unit}</span>`}</dd>
    <div class="under">${kind && html`<i class="dot ${kind}"></i> `}${under ?? ""}</div></div>`;
}

export const Tag = ({ kind = "", icon, children }) =>
  html`<span class="tag ${kind}">${icon && html`<${Icon} name=${icon} size=${12} />`}${children}</span>`;

/** Rows under a header; on a phone each row folds into a card. Columns: `{ key, label, cell, kind }`. */
export function Table({ label, columns, rows, keyOf, chosen, first = false }) {
  return html`<div class="sheet ${first ? "first" : ""}"><table class="folds"><caption class="unseen">${label}</caption>
    <thead><tr>${columns.map((column) => html`<th key=${column.label} scope="col" class=${column.kind ?? ""}>
      ${column.hidden ? html`<span class="unseen">${column.label}</span>` : column.label}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${keyOf(row)} class=${chosen?.(row) ? "chosen" : ""}>
      ${columns.map((column) => html`<td key=${column.label} class=${column.kind ?? ""} data-label=${column.hidden ? "" : column.label}>
        ${column.cell(row)}</td>`)}</tr>`)}</tbody></table></div>`;
}

export const Loading = ({ what = "Loading" }) => html`<div class="empty" role="status">${what}…</div>`;

// --- dialogs ----------------------------------------------------------------------------------

/** A modal dialog: focus stays in it, Escape closes it, focus goes back where it was. */
export function Dialog({ title, onClose, children, foot, wide = false, onSubmit }) {
  const box = useRef(null);
  useLayoutEffect(() => {
    const before = document.activeElement;
    box.current.showModal();
    return () => { if (before?.isConnected) before.focus(); };
  }, []);
  const inside = html`<div class="dialog-head"><h2>${title}</h2>
      <button type="button" class="button plain icon" aria-label="Close" onClick=${onClose}><${Icon} name="close" /></button></div>
    <div class="dialog-body">${children}</div>${foot && html`<div class="dialog-foot">${foot}</div>`}`;
  return html`<dialog ref=${box} class=${wide ? "wide" : ""} aria-label=${title}
    onCancel=${(event) => { event.preventDefault(); onClose(); }}>
    ${onSubmit ? html`<form onSubmit=${(event) => { event.preventDefault(); onSubmit(); }}>${inside}</form>` : inside}</dialog>`;
}

/** Before something that cannot be undone: says what will happen and has its name typed. */
export function TypeName({ title, name, verb, children, onDone, onClose, ready = true, doing }) {
  const [typed, setTyped] = useState("");
  const may = ready && typed.normalize("NFC") === name && !doing.busy;
  return html`<${Dialog} title=${title} onClose=${onClose} onSubmit=${() => may && onDone()} foot=${html`
      <${Button} onClick=${onClose}>Cancel</${Button}>
      <button type="submit" class="button danger first" disabled=${!may}>${verb}</button>`}>
    ${children}
    <${Field} label=${html`Type <code>${name}</code> to confirm`} value=${typed} onInput=${setTyped} mono />
    <${Refusal} error=${doing.error} /></${Dialog}>`;
}
