// Patterns of channels: the durables over them, and the live tail of all channels that one names.
import { html, useEffect, useState } from "../view.js";
import { all, path, remove } from "../api.js";
import { count, many } from "../format.js";
import { Button, Choice, Empty, Field, Head, Loading, Note, Panel, Refusal, Table, TypeName, tell, useDoing, useRefreshed } from "../parts.js";
import { note, to } from "../router.js";
import { may } from "../session.js";
import { NewDurable } from "./durables.js";
import { Tail } from "./tail.js";

/** The durables over patterns: each on all channels that its pattern names, also on those made later. */
function Durables({ making, setMaking }) {
  const loaded = useRefreshed((signal) => all("/durables", {}, signal), [], 2000);
  const [ending, setEnding] = useState(null);
  const doing = useDoing(), rows = loaded.value;
  const end = async () => {
    const done = await doing.act(async () => { await remove(path("durables", ending.pattern, ending.name)); return true; });
    if (done) { tell(`The durable ${ending.name} over ${ending.pattern} has ended.`); setEnding(null); loaded.again(); }
  };
  return html`<div class="stack">${loaded.error && html`<${Refusal} error=${loaded.error} />`}
    <${Panel} label="Patterns" bare>${!rows ? !loaded.error && html`<${Loading} />` : rows.length ? html`<${Table} first label="Patterns" rows=${rows} keyOf=${(row) => `${row.pattern}\n${row.name}`} columns=${[
      { label: "Pattern", kind: "lead", cell: (row) => html`<a href=${to("patterns", { view: "live", pattern: row.pattern })} title="Watch these channels"><code>${row.pattern}</code></a>${row.selector && html`<div class="sub mono">${row.selector}</div>`}` },
      { label: "Durable", cell: (row) => row.name },
      { label: "Type", cell: (row) => row.type },
      { label: "Channels", kind: "num", cell: (row) => count(row.channels) },
      { label: "Acts", hidden: true, kind: "acts-cell", cell: (row) => may("full") && html`<${Button} kind="small danger" onClick=${() => setEnding(row)} label="End the durable ${row.name} over ${row.pattern}">End…</${Button}>` },
    ]} />` : html`<${Empty} title="No durables over patterns yet" shell="penstock durable create 'orders/*' billing" python=${'session.durables.create("orders/*", "billing")'}>
      A durable over a pattern exists on each matching channel. A channel created later has it from its first event on.</${Empty}>`}</${Panel}>
    ${making && html`<${NewDurable} onClose=${() => setMaking(false)} onDone=${loaded.again} />`}
    ${ending && html`<${TypeName} title="End ${ending.name} over ${ending.pattern}" name=${ending.name} verb="End durable" doing=${doing} onDone=${end} onClose=${() => setEnding(null)}>
      <${Note} kind="warn" title="Its positions are lost.">The durable is removed from ${many(ending.channels, "channel")}, with its outstanding events, except on channels where another pattern requires it.</${Note}></${TypeName}>`}</div>`;
}

/** The events of all channels of a pattern as they come, also of channels that are made later. */
function Live({ pattern, setPattern, selector, setSelector, chosen, setChosen }) {
  const [typed, setTyped] = useState({ pattern, selector });
  const [error, setError] = useState(null);
  useEffect(() => { setTyped({ pattern, selector }); }, [pattern, selector]);
  const apply = (event) => {
    event.preventDefault();
    setError(null);
    if (typed.pattern.trim() !== pattern) setChosen(null);
    setPattern(typed.pattern.trim());
    setSelector(typed.selector.trim());
  };
  const atSelector = error?.code === "invalid-selector";
  return html`<div class="stack"><form class="find" onSubmit=${apply}>
      <div class="grow"><${Field} label="Pattern of channels" mono value=${typed.pattern} onInput=${(value) => setTyped({ ...typed, pattern: value })} autofocus=${!pattern} placeholder="orders/*" /></div>
      <div class="grow"><${Field} label="Selector" mono value=${typed.selector} onInput=${(value) => setTyped({ ...typed, selector: value })} placeholder="price > 5 AND sku LIKE 'a%'" wrong=${atSelector ? `${error.code}: ${error.message}` : undefined} /></div>
      <button type="submit" class="button first" disabled=${!typed.pattern.trim()}>Watch</button></form>
    ${error && !atSelector && html`<${Refusal} error=${error} />`}
    ${pattern ? html`<${Tail} pattern=${pattern} selector=${selector} chosen=${chosen} setChosen=${setChosen} onRefused=${setError} />`
      : html`<${Panel} bare label="Live events"><${Empty} title="Which channels?" shell="penstock subscribe 'orders/*'">Enter a pattern, such as <code>orders/*</code> or <code>eu/**</code>. Events of all matching channels appear here as they are published, each with its channel, including channels created later.</${Empty}></${Panel}>`}</div>`;
}

/** What an address says. */
const asked = (query) => ({ mode: query.view === "live" ? "live" : "durables", pattern: query.pattern ?? "", selector: query.selector ?? "", event: /^\d+@./s.test(query.event ?? "") ? query.event : null });

export function PatternsPage({ route }) {
  const given = asked(route.query);
  const [mode, setMode] = useState(given.mode);
  const [pattern, setPattern] = useState(given.pattern);
  const [selector, setSelector] = useState(given.selector);
  const [chosen, setChosen] = useState(given.event);
  const [making, setMaking] = useState(false);
  // A link to another pattern, or the way back from it.
  useEffect(() => { setMode(given.mode); setPattern(given.pattern); setSelector(given.selector); setChosen(given.event); }, [route]);
  useEffect(() => { note("patterns", mode === "live" ? { view: "live", pattern, selector, event: chosen } : {}); }, [mode, pattern, selector, chosen]);
  const live = mode === "live";
  return html`<div class="page"><${Head} title="Patterns" lead=${live ? "Events of all channels that match a pattern, including channels created later. * matches any part of a name up to the next /, ** any part including /. Separate several patterns with commas." : "Durables of one name on all channels that match a pattern, including channels created later."}
      acts=${!live && may("full") && html`<${Button} kind="first" icon="plus" onClick=${() => setMaking(true)}>New durable over a pattern</${Button}>`} />
    <div class="stack"><div class="find"><${Choice} label="View" value=${mode} onPick=${setMode} options=${[["durables", "Durables"], ["live", "Live"]]} /></div>
    ${live ? html`<${Live} pattern=${pattern} setPattern=${setPattern} selector=${selector} setSelector=${setSelector} chosen=${chosen} setChosen=${setChosen} />`
      : html`<${Durables} making=${making} setMaking=${setMaking} />`}</div></div>`;
}
