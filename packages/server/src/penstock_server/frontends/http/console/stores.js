// The names of all channels and queues: from the live counters where they tell of all, else listed.
import { useEffect, useMemo } from "./view.js";
import { all } from "./api.js";
import { live, useLive } from "./live.js";
import { useLoaded } from "./parts.js";

const byName = (one, other) => (one.name < other.name ? -1 : one.name > other.name ? 1 : 0);

const listed = async (signal) => (await all("/names", { limit: 50_000, durables: true }, signal)).sort(byName);

/** Every store as `{ name, kind }`, in the order of names, listed ones with `durables`; undefined
 * until they are known. */
export function useStores() {
  const now = useLive();
  const told = now.rates !== null && !now.rates.left_out;
  const loaded = useLoaded((signal) => (told ? Promise.resolve(undefined) : listed(signal)), [told]);
  useEffect(() => {
    if (told) return undefined;
    const timer = setInterval(loaded.again, 30_000);
    return () => clearInterval(timer);
  }, [told, loaded.again]);
  const fromLive = useMemo(
    () => (told ? now.rates.channels.map(({ name, kind }) => ({ name, kind })).sort(byName) : undefined),
    [told, now.names],
  );
  return { stores: fromLive ?? loaded.value, error: told ? null : loaded.error };
}

/** Names for the suggestions of a field. */
export const storeNames = () => (live.rates?.channels ?? []).map(({ name }) => name).sort();
