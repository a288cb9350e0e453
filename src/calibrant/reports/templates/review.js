const $ = (id) => document.getElementById(id);
const el = (name, props = {}, ...children) => {
  const made = Object.assign(document.createElement(name), props);
  made.append(...children); // texts become text nodes
  return made;
};
const percent = (p) => (p === null || p === undefined ? "-" : `${(100 * p).toFixed(1)} %`);
const count = (n) => n.toLocaleString("en");

const ask = async (path, body) => {
  const sent = body && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  let answer;
  try {
    answer = await fetch(`/api/${path}`, sent);
  } catch {
    throw new Error("calibrant review does not answer: is it still running? What was not confirmed is not saved.");
  }
  const found = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(found.error ?? `Expected an answer, got status ${answer.status}.`);
  return found;
};
const guarded = async (work) => {
  try {
    $("problem").hidden = true;
    return await work();
  } catch (error) {
    $("problem").textContent = error.message;
    $("problem").hidden = false;
  }
};

const about = await guarded(() => ask("rows"));
const { columns, labels } = about;
const rows = columns.row.map((row, n) => ({
  row, index: columns.index[n], label: columns.label[n], confidence: columns.confidence[n],
  flags: columns.flags[n], answer: columns.answer[n],
}));
const byRow = new Map(rows.map((one) => [one.row, one]));
const details = new Map();
let nearest = new Map();
let wanted = []; // rows that the promise asks about
let mislabelled = [];
const decided = []; // rows in the order in which they were answered, since the page was opened
let hits = null; // rows that a search found
let answered = rows.filter((one) => one.answer).length;
let saving = false;

const isSuspect = (one) => one.flags || one.suspect || one.answer === "" || one.wanted;
const FILTERS = [
  ["asked for", (one) => one.wanted || one.answer === ""],
  ["what matters", isSuspect],
  ["to review", (one) => one.flags & 1],
  ["likely mislabelled", (one) => one.suspect],
  ["escalated", (one) => one.flags & 2],
  ["answered", (one) => one.answer],
  ["all", () => true],
];
let filter = FILTERS[about.certify ? 0 : rows.some(isSuspect) ? 1 : 6];
let queue = [];
let place = 0;
let current = null;

const asksForPromise = () => about.certify && filter === FILTERS[0];
const arrange = (keep = current) => {
  const [name, fits] = filter;
  let found = name === "likely mislabelled" ? mislabelled.map((row) => byRow.get(row)) : rows.filter(fits);
  if (asksForPromise()) {
    // The row on the screen stays while others are asked for: a key that is pressed now is about it.
    const seen = wanted.length && keep && !keep.answer && !keep.wanted ? [keep] : [];
    found = [...decided, ...seen, ...wanted.map((row) => byRow.get(row))];
  }
  queue = hits ? found.filter((one) => hits.has(one.row)) : found;
  const again = queue.indexOf(keep);
  place = again >= 0 ? again : firstOpen();
};
const firstOpen = () => {
  const first = queue.findIndex((one) => !one.answer);
  return first >= 0 ? first : asksForPromise() ? queue.length : 0;
};

const fetchAhead = async () => {
  if (queue.slice(place, place + 6).every((one) => details.has(one.row))) return;
  // Many at once: the server reads its file from the beginning for each request.
  const missing = queue.slice(place, place + 40).filter((one) => !details.has(one.row)).map((one) => one.row);
  for (const found of await ask(`details?${missing.map((row) => `row=${row}`).join("&")}`)) details.set(found.row, found);
};

const show = async () => {
  const one = queue[place] ?? null;
  current = one;
  drawFilters();
  drawProgress();
  drawQueue();
  document.querySelector(".desk").hidden = document.querySelector(".controls").hidden = false;
  if (one === null) {
    $("about").textContent = asksForPromise() ? "No more answers are needed here." : "No row is left here: press f for others.";
    for (const id of ["text", "labels"]) $(id).replaceChildren();
    for (const id of ["whole", "label", "steps", "context", "nearest"]) $(id).hidden = true;
    return;
  }
  if (!details.has(one.row)) await guarded(fetchAhead);
  else guarded(fetchAhead);
  if (current !== one || !details.has(one.row)) return;
  drawRow(one, details.get(one.row));
  drawNearest(one);
};

const drawProgress = () => {
  const left = queue.filter((one) => !one.answer).length;
  $("name").textContent = about.name;
  $("progress").textContent = `${count(answered)} of ${count(rows.length)} rows answered, ${count(left)} left here`;
};

const drawFilters = () => {
  $("filters").replaceChildren(...FILTERS.filter((one) => one === filter || rows.some(one[1])).map((one) => {
    const button = el("button", { type: "button", textContent: one[0], onclick: () => choose(one) });
    button.setAttribute("aria-pressed", String(one === filter));
    return button;
  }));
};

const drawQueue = () => {
  const begin = Math.max(0, Math.min(place - 3, queue.length - 9));
  $("queue").replaceChildren(...queue.slice(begin, begin + 9).map((one, n) => {
    const label = one.answer ? `✓ ${one.answer}` : one.label ?? "no label";
    const button = el("button", { type: "button", className: one.answer ? "done" : "", onclick: () => go(begin + n) },
      el("span", { textContent: `${one.index}: ${label}` }), el("span", { textContent: percent(one.confidence) }));
    if (one === current) button.setAttribute("aria-current", "true");
    return el("li", {}, button);
  }));
};

const choices = (one, found) => {
  const given = new Map(found.probabilities);
  if (labels.length <= 9) return labels.map((label) => [label, given.get(label)]); // a number is always the same label
  const first = [...given.keys()].filter((label) => labels.includes(label));
  const rest = one.label && !given.has(one.label) ? [one.label] : [];
  return [...rest, ...first].slice(0, 9).map((label) => [label, given.get(label)]);
};

const choice = (one, label, p, key) => {
  const bar = el("span");
  bar.style.width = `${100 * Math.min(Math.max(p ?? 0, 0), 1)}%`;
  const notes = [label === one.label && "predicted", label === details.get(one.row)?.given && "given"].filter(Boolean);
  const button = el("button", { type: "button", className: label === one.label ? "predicted" : "", onclick: () => decide(label) },
    el("kbd", { textContent: key }), el("span", { className: "name" }, label, " ", el("small", { textContent: notes.join(", ") })),
    el("span", { className: "bar" }, bar), el("span", { className: "number", textContent: p === undefined ? "" : percent(p) }));
  button.setAttribute("aria-pressed", String(one.answer === label));
  return button;
};

const drawChoices = (one, found) => {
  const words = $("label").hidden ? "" : $("label").value.toLowerCase();
  const shown = words
    ? labels.filter((label) => label.toLowerCase().includes(words)).slice(0, 9).map((label) => [label, new Map(found.probabilities).get(label)])
    : choices(one, found);
  const none = choice(one, about.none, undefined, about.none);
  none.children[1].textContent = "no label fits";
  $("labels").replaceChildren(...shown.map(([label, p], n) => choice(one, label, p, words ? (n ? "" : "⏎") : String(n + 1))), none);
};

const drawRow = (one, found) => {
  const tags = [one.flags & 1 && "to review", one.suspect && "likely mislabelled", one.flags & 2 && "escalated", (one.wanted || one.answer === "") && "asked for"];
  const parts = [`row ${one.index}`, found.id && `id ${found.id}`, found.place, one.label === null ? found.outcome || "no label" : `${one.label}, ${percent(one.confidence)}`, ...tags, found.reason, one.answer && `answered: ${one.answer === about.none ? "no label fits" : one.answer}`];
  $("about").textContent = parts.filter(Boolean).join(" · ");
  $("text").textContent = found.text || "(no text)";
  $("text").scrollTop = 0;
  $("whole").hidden = found.characters <= found.text.length;
  $("whole").textContent = `Show all ${count(found.characters)} characters`;
  $("label").hidden = labels.length <= 9;
  $("label").value = "";
  drawChoices(one, found);
  $("context").hidden = !found.context;
  $("context").querySelector("pre").textContent = found.context;
  $("steps").hidden = !found.steps.length;
  $("steps").querySelector("tbody").replaceChildren(...found.steps.map((step) => el("tr", {},
    el("td", { textContent: step.model }), el("td", { textContent: step.label || "-" }),
    el("td", { className: "number", textContent: percent(step.confidence) }), el("td", { textContent: [step.verdict, step.reason].filter(Boolean).join(": ") }))));
};

const drawNearest = async (one) => {
  $("nearest").hidden = true;
  if (nearest === null) return;
  if (!nearest.has(one.row)) nearest.set(one.row, await ask(`nearest?row=${one.row}`).catch(() => []));
  const found = nearest?.get(one.row);
  if (found === null) nearest = null; // the source knows no training rows
  if (!found || current !== one) return;
  $("nearest").hidden = !found.length;
  $("nearest").querySelector("ul").replaceChildren(...found.map((near) => el("li", {}, el("strong", { textContent: near.label }), ` ${near.text}`)));
};

const go = (to) => {
  place = Math.max(0, Math.min(to, queue.length - 1));
  return show();
};
const choose = (one) => {
  filter = one;
  arrange(null);
  return show();
};

const decide = async (answer) => {
  const one = current;
  if (saving || one === null || answer === null || answer === undefined) return;
  saving = true;
  const saved = await guarded(() => ask("decide", { row: one.row, answer }));
  saving = false;
  if (!saved) return;
  one.answer = answer;
  if (!decided.includes(one)) decided.push(one);
  answered = saved.answered;
  const next = queue.findIndex((other, n) => n > place && !other.answer);
  // The promise counts rows in their order, up to the first that has no answer.
  place = next >= 0 && !asksForPromise() ? next : firstOpen();
  $("row").focus({ preventScroll: true });
  promise();
  await show();
};

const undo = async () => {
  if (saving) return;
  saving = true;
  const taken = await guarded(() => ask("undo", {}));
  saving = false;
  if (!taken || taken.row === null) return;
  const one = byRow.get(taken.row);
  one.answer = taken.answer;
  if (!one.answer && decided.includes(one)) decided.splice(decided.indexOf(one), 1);
  answered = taken.answered;
  if (!queue.includes(one)) {
    filter = FILTERS[6];
    hits = null;
  }
  arrange(one);
  promise();
  await show();
};

let counting = false;
let again = false;
const promise = async () => {
  if (!about.certify) return;
  again = true;
  if (counting) return; // the latest answers count
  counting = true;
  while (again) {
    again = false;
    const found = await guarded(() => ask("promise"));
    if (!found) break;
    for (const one of rows) one.wanted = false;
    wanted = found.wanted;
    for (const row of wanted) byRow.get(row).wanted = true;
    const box = $("promise");
    box.hidden = false;
    box.dataset.used = found.used;
    box.children[0].textContent = found.sentence;
    box.children[1].value = found.missing ? found.used / (found.used + found.missing) : 1;
    box.children[2].textContent = `${count(found.used)} ${found.used === 1 ? "label counts" : "labels count"}. ${found.missing ? `${count(found.missing)} more, if all are as predicted, accept more rows.` : found.reason}`;
    if (asksForPromise()) {
      const before = current;
      arrange();
      if ((queue[place] ?? null) !== before) await show();
      else { drawQueue(); drawProgress(); }
    }
  }
  counting = false;
};

$("whole").onclick = () => guarded(async () => {
  const one = current;
  const whole = await ask(`text?row=${one.row}`);
  if (current === one) $("text").textContent = whole;
  $("whole").hidden = true;
});
$("label").oninput = () => current && drawChoices(current, details.get(current.row));
let typing = 0;
$("search").oninput = () => {
  clearTimeout(typing);
  typing = setTimeout(() => guarded(async () => {
    const words = $("search").value.trim();
    hits = words ? new Set(await ask(`search?words=${encodeURIComponent(words)}`)) : null;
    arrange();
    await show();
  }), 150);
};

const KEYS = {
  ArrowRight: () => go(place + 1), ArrowDown: () => go(place + 1), ArrowLeft: () => go(place - 1), ArrowUp: () => go(place - 1),
  u: undo, "/": () => $("search").focus(), l: () => $("label").focus(),
  f: () => { const shown = FILTERS.filter((one) => one === filter || rows.some(one[1])); choose(shown[(shown.indexOf(filter) + 1) % shown.length]); },
  Enter: () => decide(current?.label), "-": () => decide(about.none),
};
document.addEventListener("keydown", (event) => {
  const field = event.target instanceof HTMLInputElement ? event.target : null;
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (field && event.key === "Enter" && field.id === "label" && field.value) $("labels").querySelector("button").click();
  else if (field && (event.key === "Escape" || event.key === "Enter")) $("row").focus();
  else if (!field && /^[1-9]$/.test(event.key)) $("labels").querySelectorAll("button:not(:last-child)")[event.key - 1]?.click();
  else if (!field && KEYS[event.key] && !(event.key === "Enter" && event.target instanceof HTMLButtonElement)) KEYS[event.key]();
  else return;
  event.preventDefault();
});

arrange(null);
await show();
$("row").focus({ preventScroll: true });
promise();
mislabelled = (await guarded(() => ask("mislabelled"))) ?? [];
for (const row of mislabelled) byRow.get(row).suspect = true;
if (mislabelled.length) {
  // What is ranked at once is shown first; later, the row on the screen stays.
  if (filter === FILTERS[6] && !answered && performance.now() < 2000) await choose(FILTERS[1]);
  arrange();
  drawFilters();
  drawProgress();
  drawQueue();
}
