// Numbers for people.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(count) {
  let unit = 0;
  let value = count;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${UNITS[unit]}`;
}

export function milliseconds(count) {
  if (count == null) return "–";
  if (count < 1) return `${count.toFixed(1)} ms`;
  return count < 1000 ? `${Math.round(count)} ms` : `${(count / 1000).toFixed(count < 10_000 ? 2 : 1)} s`;
}

export function rate(count) {
  return count === 0 ? "0" : count < 10 ? count.toFixed(2) : count.toFixed(1);
}

/** Length of time in its two largest units. */
export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const parts = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = parts.findIndex(([, length]) => whole >= length);
  if (first < 0) return "0 s";
  const [name, length] = parts[first];
  const rest = parts[first + 1];
  const more = rest ? Math.floor((whole % length) / rest[1]) : 0;
  return `${Math.floor(whole / length)} ${name}${more ? ` ${more} ${rest[0]}` : ""}`;
}

export const time = (ms) => new Date(ms).toLocaleTimeString();

export const version = (digest) => (digest ? digest.slice(0, 12) : "–");

export function share({ used, limit }, show) {
  return limit == null ? show(used) : `${show(used)} of ${show(limit)}`;
}

/** Order of names, with numbers in them by their value. */
export const byName = new Intl.Collator("en", { numeric: true }).compare;

export function plural(count, one, many = `${one}s`) {
  return `${count} ${count === 1 ? one : many}`;
}
