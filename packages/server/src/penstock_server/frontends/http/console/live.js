// The realm's counters, once a second, and what they say of the last minutes.
//
// One stream serves every page. A channel or durable has a history only once something has moved
// on it, so that ten thousand idle channels cost nothing here.
import { useEffect, useState } from "./view.js";
import { stream } from "./api.js";
import { may } from "./session.js";

const KEPT = 180;
const AGAIN_MS = 2000;

class History {
  constructor() { this.samples = []; }

  add(sample) {
    this.samples.push(sample);
    if (this.samples.length > KEPT) this.samples.shift();
  }

  values(name) { return this.samples.map((sample) => sample[name] ?? null); }
  get times() { return this.samples.map((sample) => sample.time); }
  get last() { return this.samples.at(-1); }
}

const durableKey = (channel, name) => `${channel}\n${name}`;

export const live = {
  state: "opening",
  rates: null,
  /** Changes whenever a channel, queue or durable came or went. */
  names: "",
  realm: new History(),
  channels: new Map(),
  durables: new Map(),
  byChannel: new Map(),
};

const watchers = new Set();
const changed = () => { for (const watcher of watchers) watcher(); };

/** Draws again with each second's counters. */
export function useLive() {
  const [, setTurn] = useState(0);
  useEffect(() => {
    const watcher = () => setTurn((turn) => turn + 1);
    watchers.add(watcher);
    return () => watchers.delete(watcher);
  }, []);
  return live;
}

const least = (number) => Math.max(0, number);

const KINDS = ["published", "delivered", "acknowledged"];

/** What flows, by the second; nothing yet for what was not there a second ago. */
function flow(now, before, seconds) {
  const rate = (name, of = (told) => told[name]) => (before ? least(of(now) - of(before)) / seconds : null);
  return {
    published: now.counters ? rate("published", (told) => told.counters.published) : null,
    delivered: rate("delivered"),
    acknowledged: rate("acknowledged"),
  };
}

let seen = { time: 0, channels: new Map(), durables: new Map() };

function grouped(durables) {
  const groups = new Map();
  for (const durable of durables) {
    if (!groups.has(durable.channel)) groups.set(durable.channel, []);
    groups.get(durable.channel).push(durable);
  }
  return groups;
}

function historyOf(kept, key, moved, like) {
  if (!kept.has(key) && moved) {
    const history = new History();
    // What stood still until now: its curve begins at zero and not with a gap.
    for (const { time } of live.realm.samples.slice(-60)) history.add({ ...like, time });
    kept.set(key, history);
  }
  return kept.get(key);
}

let extra = null;

/** With more channels than the stream tells of, the one that is looked at is asked for by itself. */
function completed(rates) {
  const name = extra?.channels[0]?.name;
  if (name === undefined || rates.channels.some((channel) => channel.name === name)) return rates;
  return { ...rates, channels: [...rates.channels, ...extra.channels], durables: [...rates.durables, ...extra.durables] };
}

export function take(told) {
  const rates = completed(told);
  const time = Date.parse(rates.at), seconds = Math.max((time - seen.time) / 1000, 0.05);
  const now = { time, channels: new Map(), durables: new Map() };
  const total = { time, published: 0, delivered: 0, acknowledged: 0 };
  for (const durable of rates.durables) {
    const key = durableKey(durable.channel, durable.name), before = seen.durables.get(key);
    now.durables.set(key, durable);
    durable.flow = flow(durable, before, seconds);
    const moved = durable.outstanding > 0 || KINDS.some((kind) => durable.flow[kind] > 0);
    historyOf(live.durables, key, moved, { outstanding: 0, in_flight: 0, acknowledged: 0 })
      ?.add({ time, outstanding: durable.outstanding, in_flight: durable.in_flight, acknowledged: durable.flow.acknowledged });
  }
  for (const channel of rates.channels) {
    const before = seen.channels.get(channel.name), flows = flow(channel, before, seconds);
    now.channels.set(channel.name, channel);
    for (const kind of KINDS) total[kind] += flows[kind] ?? 0;
    const moved = KINDS.some((kind) => flows[kind] > 0);
    historyOf(live.channels, channel.name, moved, { published: 0, delivered: 0, acknowledged: 0 })?.add({ time, ...flows });
  }
  // The first of all has nothing before it to differ from.
  if (seen.time) live.realm.add(total);
  for (const name of live.channels.keys()) if (!now.channels.has(name)) live.channels.delete(name);
  for (const key of live.durables.keys()) if (!now.durables.has(key)) live.durables.delete(key);
  seen = now;
  // What a queue keeps for its readers is none of the durables that people made.
  const durables = rates.durables.filter((durable) => now.channels.get(durable.channel)?.kind !== "queue");
  live.rates = { ...rates, durables };
  live.byChannel = grouped(durables);
  live.names = `${[...now.channels.keys()].join("\n")}\n\n${[...live.byChannel].map(([name, durables]) => [name, ...durables.map((each) => each.name)].join("\n")).join("\n\n")}`;
}

/** A history to draw: that of the channel, or a straight line where nothing has moved. */
export function channelHistory(name) {
  const found = live.channels.get(name);
  if (found) return found;
  const flat = new History();
  if (live.rates?.channels.some((channel) => channel.name === name)) {
    flat.samples = live.realm.samples.map(({ time }) => ({ time, published: 0, delivered: 0, acknowledged: 0 }));
  }
  return flat;
}

export function durableHistory(channel, name) {
  const found = live.durables.get(durableKey(channel, name));
  if (found) return found;
  const flat = new History();
  flat.samples = live.realm.samples.map(({ time }) => ({ time, outstanding: 0, in_flight: 0, acknowledged: 0 }));
  return flat;
}

/** Sees to it that a channel's counters are among those of the stream while its page is open. */
export function useWatched(name) {
  const leftOut = Boolean(live.rates?.left_out);
  useEffect(() => {
    if (!leftOut) return undefined;
    const control = new AbortController();
    stream("/rates", { channel: name }, control.signal, (kind, data) => { if (data?.channels) extra = data; }).catch(() => {});
    return () => { control.abort(); extra = null; };
  }, [name, leftOut]);
}

/** Whoever looks has no right to the figures: nothing is followed, and nothing is said of them. */
export function deny() {
  live.state = "denied";
  live.rates = null;
  live.names = "";
  live.byChannel = new Map();
  changed();
}

/** Whether there are figures, or will be. */
export const hasFigures = () => may("admin", "monitor") && live.state !== "denied";

/** Follows the counters until the signal ends it; after a loss it begins again by itself. */
export async function follow(signal) {
  live.state = "opening";
  while (!signal.aborted) {
    try {
      await stream("/rates", {}, signal, (name, data) => {
        if (!data?.channels) return;
        live.state = "live";
        take(data);
        changed();
      });
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 401) return;
      if (error.status === 403) { deny(); return; }
    }
    live.state = "lost";
    changed();
    await new Promise((resolve) => { setTimeout(resolve, AGAIN_MS); });
  }
}
