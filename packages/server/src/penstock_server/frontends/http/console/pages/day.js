// The last 24 hours of the realm, a channel or a durable, from before the page was opened.
import { html } from "../view.js";
import { get } from "../api.js";
import { moment } from "../format.js";
import { Empty, Loading, Panel, Refusal, useRefreshed } from "../parts.js";
import { Plot } from "../plot.js";

const DAY = 86_400;
const AGAIN_MS = 60_000;

/** When each step ended, in milliseconds. */
const timesOf = (told) => told.delivered.map((_, index) => Date.parse(told.first) + index * told.step_ms);

function Curves({ told, whose }) {
  const times = timesOf(told);
  const rates = [["Published", "published"], ["Delivered", "delivered"], ["Acknowledged", "acknowledged"]]
    .filter(([, figure]) => told[figure].length).map(([name, figure]) => ({ name, values: told[figure] }));
  const late = [["Delivery", "delivery_ms"], ["Sync of the journal", "sync_ms"]]
    .filter(([, figure]) => told[figure].length).map(([name, figure]) => ({ name, values: told[figure] }));
  return html`<${Plot} label="Events per second ${whose} in 24 hours" times=${times} seconds=${DAY} series=${rates} unit="/s" />
    <${Plot} small label="Lag ${whose} in 24 hours" times=${times} seconds=${DAY} series=${[{ name: "Outstanding", values: told.outstanding }]} />
    <${Plot} small label="Latency ${whose} in 24 hours" times=${times} seconds=${DAY} series=${late} unit=" ms" />`;
}

/** `whose` ends the names of the curves: "of the realm", "of orders". */
export function Day({ channel, durable, whose }) {
  const { value: told, error } = useRefreshed((signal) => get("/history", { channel, durable }, signal), [channel, durable], AGAIN_MS);
  const hint = told ? `since ${moment(told.begun)}; 99 % of latencies do not exceed the shown values` : "";
  return html`<${Panel} title="Last 24 hours" hint=${hint}>
    ${error && html`<${Refusal} error=${error} slim />`}
    ${!told && !error && html`<${Loading} />`}
    ${told && !told.is_kept && html`<${Empty} title="No history">The realm keeps the history of a limited number of channels, queues and durables, and the limit is reached.</${Empty}>`}
    ${told?.is_kept && !told.delivered.length && html`<${Empty} title="No history yet">The history begins at the start of the realm, with one value every two minutes.</${Empty}>`}
    ${told?.is_kept && told.delivered.length > 0 && html`<${Curves} told=${told} whose=${whose} />`}</${Panel}>`;
}
