// Pipelines: what each step's last run has said of itself.
import { html } from "../view.js";
import { all } from "../api.js";
import { brief, count, duration, known, moment } from "../format.js";
import { Empty, Facts, Head, Loading, Note, Panel, Refusal, Tag, useRefreshed } from "../parts.js";

const STATES = { runs: ["ok", "play"], done: ["ok", "check"], starts: ["accent", "again"], restarts: ["warn", "again"], stopped: ["", "pause"], failed: ["bad", "error"], "broken off": ["bad", "warning"] };
const BEHIND = 10_000;

function places({ next, lag }) {
  return Object.entries(next).map(([name, id]) => [name, html`next event ${count(id)}${known(lag[name]) ? `, ${lag[name] ? `${count(lag[name])} behind` : "up to date"}` : ""}`]);
}

function leftOut(later) {
  const names = Object.entries(later ?? {}).flatMap(([channel, properties]) => properties.map((name) => `${name} of ${channel}`));
  return names.length ? html`<${Tag} kind="warn" icon="warning">${names.join(", ")}</${Tag}> appeared after the step started; restart it to read them` : null;
}

function rows({ progress, status }) {
  const { rows: read = 0, rows_out: out, rows_late: late, rows_per_s: pace, rows_out_per_s: outPace, batch, batch_ms: took, lag_events: behind, lag_ms: age } = progress;
  return [
    ["Rows read", `${count(read)}${pace ? `, ${brief(pace)}/s` : ""}`],
    known(out) ? ["Rows stored", `${count(out)}${outPace ? `, ${brief(outPace)}/s` : ""}`] : null,
    late ? ["Too late", html`<${Tag} kind="warn" icon="warning">${count(late)}</${Tag}>`] : null,
    known(behind) ? ["Behind", behind ? html`<${Tag} kind=${behind > BEHIND ? "warn" : ""}>${count(behind)} events</${Tag}>${known(age) ? `, the oldest ${duration(age)} old` : ""}` : html`<${Tag} kind="ok" icon="check">up to date</${Tag}>`] : null,
    leftOut(progress.later) ? ["Not read", leftOut(progress.later)] : null,
    known(batch) ? ["Micro-batch", `${count(batch)}${known(took) ? `, took ${duration(took)}` : ""}`] : null,
    status.restarts ? ["Restarts", count(status.restarts)] : null,
    ["Started", moment(status.started)], ["Status as of", moment(status.at)],
    status.text ? ["Result", status.text] : null,
  ];
}

function Done({ done, total }) {
  if (!total) return null;
  const part = Math.min(100, (100 * done) / total);
  return html`<div class="section"><div class="row"><span>${part.toFixed(0)} %</span><span class="hint">${count(done)} of ${count(total)} rows</span></div>
    <div class="gauge" role="progressbar" aria-label="Done" aria-valuenow=${Math.round(part)} aria-valuemin="0" aria-valuemax="100"><i style=${{ width: `${part}%` }}></i></div></div>`;
}

function Step({ step }) {
  const status = step.status ?? {}, progress = status.progress ?? {}, [kind, icon] = STATES[step.state] ?? ["", "info"];
  return html`<${Panel} title=${step.name} hint=${progress.text} acts=${html`<${Tag} kind=${kind} icon=${icon}>${step.state}</${Tag}>`}>
    ${status.error && html`<${Note} kind=${status.state === "failed" ? "bad" : "warn"} slim title="Last error">${status.error}</${Note}>`}
    ${step.status && html`<${Facts} rows=${[...rows({ progress, status }), ...places(step)]} /><${Done} done=${progress.rows} total=${progress.total} />`}</${Panel}>`;
}

export function PipelinesPage() {
  const loaded = useRefreshed((signal) => all("/pipelines", {}, signal), [], 3000), found = loaded.value;
  return html`<div class="page"><${Head} title="Pipelines" lead="Spark pipelines between channels and tables, and the progress of each step." />
    ${loaded.error && html`<${Refusal} error=${loaded.error} />`}${!found && !loaded.error && html`<${Loading} />`}
    ${found?.length === 0 && html`<${Panel} label="Pipelines" bare><${Empty} title="No pipelines" shell="penstock pipeline run flights.toml">
      A pipeline stores its status next to its checkpoints. Add their folder to the realm's setting <code>http.pipelines</code> to show it here.</${Empty}></${Panel}>`}
    ${found?.map((pipeline) => html`<section key=${pipeline.name} class="section" aria-label="Pipeline ${pipeline.name}"><h2>${pipeline.name}</h2>
      <div class="columns" style=${{ marginTop: "8px" }}>${pipeline.steps.map((step) => html`<${Step} key=${step.name} step=${step} />`)}</div></section>`)}</div>`;
}
