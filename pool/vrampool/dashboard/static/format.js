// Numbers, times and colours as people read them.

const UNITS = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];
export const MIB = 2 ** 20;

export function bytes(value) {
  if (value == null) return "–";
  for (const [unit, size] of UNITS) {
    if (Math.abs(value) >= size) {
      const number = value / size;
      return `${number >= 100 || unit === "KiB" ? number.toFixed(0) : number.toFixed(1)} ${unit}`;
    }
  }
  return `${value} B`;
}

export const mib = (value) => (value == null ? "–" : bytes(value * MIB));

// A mark on an axis, given in MiB: "512 MiB", "1.5 GiB".
export const roundSize = (tick) => (tick === 0 ? "0" : tick < 1024 ? `${Number(tick.toPrecision(3))} MiB` : `${Number((tick / 1024).toFixed(2))} GiB`);

// "3.1 of 4.0 GiB": the unit once where it is the same.
export function share(part, whole) {
  const [a, b] = [bytes(part), bytes(whole)];
  return a.split(" ")[1] === b.split(" ")[1] ? `${a.split(" ")[0]} of ${b}` : `${a} of ${b}`;
}

export function number(value) {
  if (value == null) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  return Number(value.toPrecision(5)).toString();
}

export const percent = (value) => (value == null ? "–" : `${(value * 100).toFixed(value < 0.1 ? 1 : 0)} %`);

export function duration(seconds) {
  if (seconds == null) return "–";
  const s = Math.max(0, seconds);
  if (s < 10) return `${s.toFixed(s < 1 ? 2 : 1)} s`;
  if (s < 90) return `${Math.round(s)} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ${String(Math.round((s % 3600) / 60) % 60).padStart(2, "0")} min`;
  return `${Math.round(s / 86400)} days`;
}

const two = (value) => String(value).padStart(2, "0");

export function clock(seconds, withSeconds = true) {
  const at = new Date(seconds * 1000);
  return `${two(at.getHours())}:${two(at.getMinutes())}${withSeconds ? `:${two(at.getSeconds())}` : ""}`;
}

export const plural = (count, one, many = `${one}s`) => `${count} ${count === 1 ? one : many}`;

const CRC = Uint32Array.from({ length: 256 }, (_, n) => {
  for (let k = 0; k < 8; k++) n = n & 1 ? (n >>> 1) ^ 0xedb88320 : n >>> 1;
  return n >>> 0;
});

function crc32(text) {
  let crc = 0xffffffff;
  for (const byte of new TextEncoder().encode(text)) crc = CRC[(crc ^ byte) & 255] ^ (crc >>> 8);
  return (crc ^ 0xffffffff) >>> 0;
}

// The colour a trial has in every picture of the pool (`vrampool.visualization.palette`): neighbours lie far apart.
const GOLDEN = (Math.sqrt(5) - 1) / 2;
const LIGHTNESS = [0.64, 0.74, 0.55];
const hues = new Map();

export function trialColour(study, number_, alpha = 1, darker = 0) {
  if (!hues.has(study)) hues.set(study, crc32(study) / 2 ** 32);
  const hue = 360 * ((hues.get(study) + number_ * GOLDEN) % 1);
  return `oklch(${LIGHTNESS[number_ % 3] - darker} 0.125 ${hue.toFixed(1)} / ${alpha})`;
}
