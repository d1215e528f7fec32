// What is retained, level by level: a level is asked for when it is unfolded, a page at a time.
import { html, useEffect, useRef, useState } from "../view.js";
import { Icon } from "../icons.js";
import { get, path } from "../api.js";
import { count } from "../format.js";
import { Button, Empty, Loading, Panel, Refusal } from "../parts.js";
import { note, to } from "../router.js";

const PAGE = 100;
const EMPTY_MS = 3000;
const INDENT = 20;

/** The topics on the way to one: a, a/b, a/b/c. */
const wayTo = (topic) => topic.split("/").map((_, at, levels) => levels.slice(0, at + 1).join("/"));

/** What is shown: rows of levels, and of "more" where a level has further pages. */
function flattened(known, open) {
  const rows = [];
  const visit = (prefix, level) => {
    const page = known.get(prefix);
    for (const item of page?.items ?? []) {
      rows.push({ key: `t${item.topic}`, item, level });
      if (item.is_open && open.has(item.topic)) visit(item.topic, level + 1);
    }
    if (page?.next !== null && page?.next !== undefined) rows.push({ key: `m${prefix}`, more: true, prefix, after: page.next, level });
  };
  visit(null, 0);
  return rows;
}

export function TopicTree({ route, channel }) {
  const at = route.query.at;
  const [known, setKnown] = useState(new Map());
  const [open, setOpen] = useState(new Set(at === undefined ? [] : wayTo(at)));
  const [last, setLast] = useState(at);
  const [active, setActive] = useState(null);
  const [error, setError] = useState(null);
  const [turn, setTurn] = useState(0);
  const box = useRef(null), control = useRef(null);
  const load = async (prefix, after) => {
    const { signal } = control.current;
    try {
      const page = await get(`${path("channels", channel, "topics")}?${asked(prefix, after)}`, {}, signal);
      setError(null);
      setKnown((before) => new Map(before).set(prefix, after === undefined ? page : { ...page, items: [...(before.get(prefix)?.items ?? []), ...page.items] }));
    } catch (refusal) {
      if (!signal.aborted) setError(refusal);
    }
  };
  useEffect(() => {
    control.current = new AbortController();
    load(null);
    for (const topic of open) load(topic);
    return () => control.current.abort();
  }, [channel, turn]);
  // A link to another level, or the way back from it.
  useEffect(() => {
    setLast(at);
    if (at === undefined) return;
    const way = wayTo(at);
    setOpen((before) => new Set([...before, ...way]));
    for (const topic of way) if (!known.has(topic)) load(topic);
  }, [route]);
  useEffect(() => { note("topics", last === undefined ? {} : { at: last }); }, [last]);
  const isEmpty = known.get(null)?.items.length === 0;
  useEffect(() => {
    if (!isEmpty) return undefined;
    const timer = setInterval(() => { if (!document.hidden) load(null); }, EMPTY_MS);
    return () => clearInterval(timer);
  }, [isEmpty]);
  const rows = flattened(known, open), index = Math.max(0, rows.findIndex(({ key }) => key === active));
  const fold = (topic, opens) => {
    const next = new Set(open);
    if (opens) next.add(topic); else next.delete(topic);
    setOpen(next);
    const above = topic.includes("/") ? topic.slice(0, topic.lastIndexOf("/")) : undefined;
    setLast(opens ? topic : above);
    if (opens) load(topic);
  };
  const act = (row) => {
    setActive(row.key);
    if (row.more) load(row.prefix, row.after);
    else if (row.item.is_open) fold(row.item.topic, !open.has(row.item.topic));
    else location.hash = to("topics", "retained", { filter: row.item.topic });
  };
  const move = (place) => {
    const row = rows[Math.min(Math.max(place, 0), rows.length - 1)];
    setActive(row.key);
    box.current.querySelector(`[data-at="${rows.indexOf(row)}"]`)?.scrollIntoView({ block: "nearest" });
  };
  const onKey = (event) => {
    const row = rows[index];
    if (!row || event.altKey || event.ctrlKey || event.metaKey || event.target !== box.current) return;
    const isOpen = row.item && open.has(row.item.topic);
    if (event.key === "ArrowDown") move(index + 1);
    else if (event.key === "ArrowUp") move(index - 1);
    else if (event.key === "Home") move(0);
    else if (event.key === "End") move(rows.length - 1);
    else if (event.key === "ArrowRight") { if (row.item?.is_open && !isOpen) fold(row.item.topic, true); else move(index + 1); }
    else if (event.key === "ArrowLeft") {
      if (isOpen && row.item.is_open) fold(row.item.topic, false);
      else for (let up = index; up >= 0; up -= 1) if (rows[up].level < row.level) { move(up); break; }
    } else if (event.key === "Enter" || event.key === " ") act(row);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const acts = html`<${Button} kind="small plain" icon="again" onClick=${() => setTurn(turn + 1)}>Refresh</${Button}>`;
  return html`<div class="stack">${error && html`<${Refusal} error=${error} />`}
    <${Panel} title="Retained topics" acts=${acts} bare>${!known.has(null) ? !error && html`<${Loading} />` : isEmpty ? html`<${Empty} title="No retained messages yet" shell="mosquitto_pub -t plant/3/state -m on -q 1 -r">
        A message with the retain flag is kept for its topic, and sent to later subscribers. Its topic then appears here.</${Empty}>`
      : html`<div class="topics" role="tree" aria-label="Retained topics by level" tabindex="0" ref=${box} aria-activedescendant=${`topic-${index}`} onKeyDown=${onKey}>
        ${rows.map((row, place) => html`<${Row} key=${row.key} row=${row} place=${place} isActive=${place === index} isOpen=${row.item && open.has(row.item.topic)} onAct=${() => act(row)} />`)}</div>`}</${Panel}></div>`;
}

/** What is asked of a level; a topic may be empty, as the first level of /a is. */
function asked(prefix, after) {
  const query = new URLSearchParams({ limit: PAGE });
  if (prefix !== null) query.set("prefix", prefix);
  if (after !== undefined) query.set("after", after);
  return query;
}

function Row({ row, place, isActive, isOpen, onAct }) {
  const style = { paddingLeft: `${12 + row.level * INDENT}px` }, id = `topic-${place}`;
  if (row.more) return html`<div id=${id} data-at=${place} class="topic-row ${isActive ? "active" : ""}" role="treeitem" aria-level=${row.level + 1} aria-label="More topics" style=${style} onClick=${onAct}><span class="turn"></span><span class="name more">More…</span></div>`;
  const { item } = row, wanted = item.is_open ? `${item.topic}/#` : item.topic;
  return html`<div id=${id} data-at=${place} class="topic-row ${isActive ? "active" : ""} ${isOpen ? "open" : ""}" role="treeitem" aria-level=${row.level + 1} aria-expanded=${item.is_open ? String(Boolean(isOpen)) : undefined}
    aria-label="${item.name || "an empty level"}, ${count(item.retained)} retained" title=${item.topic} style=${style} onClick=${onAct}>
    <span class="turn">${item.is_open && html`<${Icon} name="turn" size=${12} />`}</span>
    <span class="name">${item.name || html`<i>empty</i>`}</span>${item.is_open && item.event_id !== null && html`<span class="hint">with a message itself</span>`}<span class="fill"></span>
    <a href=${to("topics", "live", { filter: wanted })} tabindex=${isActive ? 0 : -1} onClick=${(event) => event.stopPropagation()}>Watch</a>
    <a href=${to("topics", "retained", { filter: wanted })} tabindex=${isActive ? 0 : -1} onClick=${(event) => event.stopPropagation()}>Read</a>
    <span class="count">${count(item.retained)}</span></div>`;
}
