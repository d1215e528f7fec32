// The tree of channels, queues and durables: grouped by the parts of names, and drawn only as far
// as it is seen, so that ten thousand names scroll like ten.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./view.js";
import { Icon } from "./icons.js";
import { brief, count } from "./format.js";
import { to } from "./router.js";
import { live, useLive } from "./live.js";

const OPEN_ALL_BELOW = 40;
const LONG = 24;
/** Pixels by which a level is moved in: less and less, so that names have room however deep they are. */
const INDENT = [0, 16, 32, 48, 64, 76, 88];
const indentOf = (level) => INDENT[level] ?? Math.min(INDENT.at(-1) + (level - INDENT.length + 1) * 4, 112);

/** Folders and stores as nested nodes, in the order of names. */
export function grown(stores, durables) {
  const root = { key: "", name: "", kind: "folder", children: [], leaves: 0 };
  const folders = new Map([["", root]]);
  const folderOf = (parts) => {
    const key = parts.join("/");
    if (folders.has(key)) return folders.get(key);
    const node = { key: `${key}/`, name: parts.at(-1), kind: "folder", children: [], leaves: 0 };
    folders.set(key, node);
    folderOf(parts.slice(0, -1)).children.push(node);
    return node;
  };
  for (const store of stores) {
    const parts = store.name.split("/");
    const folder = folderOf(parts.slice(0, -1));
    const names = durables.get(store.name)?.map(({ name }) => name) ?? store.durables ?? [];
    const children = names.map((name) => ({
      key: `${store.name}\n${name}`, name, kind: "durable", store, children: [],
    }));
    folder.children.push({ key: store.name, name: parts.at(-1), kind: store.kind, store, children });
    for (let depth = parts.length - 1; depth >= 0; depth -= 1) folders.get(parts.slice(0, depth).join("/")).leaves += 1;
  }
  return joined(root);
}

/** Folders with nothing but one folder in them are one row: a/b/c. */
function joined(node) {
  node.children = node.children.map((child) => {
    let deepest = child;
    while (deepest.kind === "folder" && deepest.children.length === 1 && deepest.children[0].kind === "folder") {
      deepest = { ...deepest.children[0], name: `${deepest.name}/${deepest.children[0].name}` };
    }
    return joined(deepest);
  });
  return node;
}

/** The rows to show: what is unfolded, or with a filter everything on the way to a match. */
export function flattened(root, isOpen, filter) {
  const rows = [], sought = filter.toLowerCase();
  const matches = (node) => !sought || (node.kind === "folder" ? false : node.kind === "durable" ? node.name : node.store.name).toString().toLowerCase().includes(sought);
  const hasMatch = (node) => matches(node) || node.children.some(hasMatch);
  const visit = (node, level) => {
    node.children.forEach((child, index) => {
      if (sought && !hasMatch(child)) return;
      const open = child.children.length > 0 && (sought ? child.kind === "folder" || child.children.some(hasMatch) : isOpen(child));
      rows.push({ node: child, level, open, index, size: node.children.length });
      if (open) visit(child, level + 1);
    });
  };
  visit(root, 0);
  return rows;
}

export const placeOf = (node) =>
  (node.kind === "durable" ? to("channel", node.store.name, "durables", node.name) : to(node.kind, node.store.name));

/** A row of several folders as its first and its last where it is long. */
function shortened(name) {
  const parts = name.split("/");
  return parts.length > 2 && name.length > LONG ? `${parts[0]}/…/${parts.at(-1)}` : name;
}

function Name({ text, filter }) {
  const at = filter ? text.toLowerCase().indexOf(filter.toLowerCase()) : -1;
  if (at < 0) return html`<span class="name">${text}</span>`;
  return html`<span class="name">${text.slice(0, at)}<mark>${text.slice(at, at + filter.length)}</mark>${text.slice(at + filter.length)}</span>`;
}

function tailOf(node, now) {
  if (node.kind === "folder") return count(node.leaves);
  if (node.kind === "durable") {
    const found = now.byChannel.get(node.store.name)?.find((each) => each.name === node.name);
    return found?.outstanding ? brief(found.outstanding) : "";
  }
  const rate = now.channels.get(node.store.name)?.last?.published;
  return rate ? `${brief(rate)}/s` : "";
}

const opened = new Set(), closed = new Set();

export function Tree({ stores, filter, chosen, treeRef, onPicked }) {
  const now = useLive();
  const [, redraw] = useState(0);
  const [active, setActive] = useState(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const box = useRef(null);
  const rowHeight = view.row ?? 28;
  const root = useMemo(() => grown(stores, now.byChannel), [stores, now.names]);
  const few = stores.length <= OPEN_ALL_BELOW;
  const isOpen = (node) => (opened.has(node.key) ? true : closed.has(node.key) ? false : node.kind === "folder" ? few : chosen === node.key || chosen?.startsWith(`${node.key}\n`));
  const rows = flattened(root, isOpen, filter.trim());
  const activeIndex = Math.max(0, rows.findIndex(({ node }) => node.key === (active ?? chosen)));

  useLayoutEffect(() => {
    if (treeRef) treeRef.current = box.current;
    const measure = () => setView((before) => ({ ...before, height: box.current.clientHeight, row: matchMedia("(max-width: 900px)").matches ? 40 : 28 }));
    const observer = new ResizeObserver(measure);
    observer.observe(box.current);
    measure();
    return () => observer.disconnect();
  }, []);
  useEffect(() => {
    if (!chosen) return;
    const parts = chosen.split("\n")[0].split("/");
    for (let depth = 1; depth < parts.length; depth += 1) { opened.add(`${parts.slice(0, depth).join("/")}/`); closed.delete(`${parts.slice(0, depth).join("/")}/`); }
    setActive(null);
    redraw((turn) => turn + 1);
  }, [chosen]);

  const show = (index) => {
    const top = index * rowHeight, element = box.current;
    if (top < element.scrollTop) element.scrollTop = top;
    else if (top + rowHeight > element.scrollTop + element.clientHeight) element.scrollTop = top + rowHeight - element.clientHeight;
  };
  // What is looked at comes into sight, once: who scrolls on is left alone.
  const sighted = useRef(null);
  const place = rows.findIndex(({ node }) => node.key === chosen);
  useLayoutEffect(() => {
    if (place < 0 || !view.row || sighted.current === chosen) return;
    sighted.current = chosen;
    show(place);
  }, [chosen, place, view.row]);
  const fold = (node, open) => {
    (open ? opened : closed).add(node.key);
    (open ? closed : opened).delete(node.key);
    redraw((turn) => turn + 1);
  };
  const pick = (row) => {
    setActive(row.node.key);
    if (row.node.kind === "folder") fold(row.node, !row.open);
    else { location.hash = placeOf(row.node); onPicked?.(); }
  };
  const move = (index) => {
    const to = Math.min(Math.max(index, 0), rows.length - 1);
    if (to >= 0) { setActive(rows[to].node.key); show(to); }
  };
  const onKey = (event) => {
    const row = rows[activeIndex];
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 12, PageUp: -12 };
    if (event.altKey || event.ctrlKey || event.metaKey || !row) return;
    if (steps[event.key]) move(activeIndex + steps[event.key]);
    else if (event.key === "Home") move(0);
    else if (event.key === "End") move(rows.length - 1);
    else if (event.key === "ArrowRight") { if (!row.open && row.node.children.length) fold(row.node, true); else if (row.open) move(activeIndex + 1); }
    else if (event.key === "ArrowLeft") {
      if (row.open && !filter) fold(row.node, false);
      else { for (let up = activeIndex; up >= 0; up -= 1) if (rows[up].level < row.level) { move(up); break; } }
    } else if (event.key === "Enter" || event.key === " ") pick(row);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };

  const first = Math.max(0, Math.floor(view.top / rowHeight) - 6);
  const last = Math.min(rows.length, Math.ceil((view.top + view.height) / rowHeight) + 6);
  return html`<div class="tree" role="tree" aria-label="Channels, queues and durables" tabindex="0" ref=${box}
    aria-activedescendant=${rows.length ? `row-${activeIndex}` : undefined} onKeyDown=${onKey}
    onScroll=${(event) => setView((before) => ({ ...before, top: event.target.scrollTop }))}>
    <div class="tree-room" style=${{ height: `${rows.length * rowHeight + 8}px` }}>
      ${rows.slice(first, last).map((row, offset) => {
        const { node, level, open, index, size } = row, at = first + offset;
        return html`<div key=${node.key} id="row-${at}" role="treeitem" aria-level=${level + 1} aria-setsize=${size} aria-posinset=${index + 1}
          aria-expanded=${node.children.length ? String(open) : undefined} aria-selected=${String(node.key === chosen)}
          aria-label="${node.kind} ${node.name}" title=${node.kind === "folder" ? node.key : node.kind === "durable" ? `${node.name} on ${node.store.name}` : node.store.name}
          class="tree-row ${node.kind === "folder" ? "folder" : "leaf"} ${at === activeIndex ? "active" : ""}"
          style=${{ top: `${at * rowHeight}px`, paddingLeft: `${4 + indentOf(level)}px` }} onClick=${() => pick(row)}>
          <span class="turn" onClick=${(event) => { if (node.children.length) { event.stopPropagation(); fold(node, !open); } }}>
            ${node.children.length > 0 && html`<${Icon} name="turn" size=${12} />`}</span>
          <${Icon} name=${node.kind} size=${14} /><${Name} text=${node.kind === "folder" ? shortened(node.name) : node.name} filter=${filter.trim()} />
          <span class="tail">${tailOf(node, now)}</span></div>`;
      })}</div></div>`;
}

/** The first store or durable that the filter leaves; Enter in the filter opens it. */
export function openFirst(stores, filter) {
  const rows = flattened(grown(stores, live.byChannel), () => true, filter.trim());
  const found = rows.find(({ node }) => node.kind !== "folder" && (node.kind === "durable" ? node.name : node.store.name).toLowerCase().includes(filter.trim().toLowerCase()));
  if (found) location.hash = placeOf(found.node);
  return Boolean(found);
}
