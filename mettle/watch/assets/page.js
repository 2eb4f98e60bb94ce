// The page of a run. Everything that comes from others is written as text, never as HTML.
"use strict";

const SEATS_PER_PAGE = 50;
const CURVE_POINTS = 600;
// From this many windows on, the first fifth does not stretch the axis: it is where the loss falls fastest.
const CURVE_SETTLED = 50;
const STRIP = 64;
// Between two reads of what changes within a window, in milliseconds.
const REFRESH_EVERY = 2000;
const MARKS = { good: "✓", bad: "✗", neutral: "·", open: "…" };
const MARK_WORDS = { good: "well", bad: "costs pay", neutral: "neutral", open: "not known yet" };
const $ = (id) => document.getElementById(id);

// An element; children are elements or text.
function el(tag, props, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (value === undefined || value === null) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== "").map((child) =>
    child instanceof Node ? child : document.createTextNode(String(child))));
  return element;
}

// A text of others.
const theirs = (text, kind) => el("bdi", kind ? { class: kind } : {}, flat(String(text)));

async function get(path) {
  const answer = await fetch("/api/" + path, { signal: AbortSignal.timeout(30000) });
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(body.error || "no answer (" + answer.status + ")");
  return body;
}

const number = (value, digits) => (value === null || value === undefined ? "–" : value.toFixed(digits));
const percent = (share) => (share * 100).toFixed(share === 0 || 0.0995 <= share ? 0 : share < 0.00995 ? 2 : 1) + " %";

function thousands(count) {
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (size <= count) return (count / size).toFixed(1) + " " + unit;
  }
  return String(Math.round(count));
}

function duration(seconds) {
  const all = Math.max(0, Math.round(seconds));
  if (all < 60) return all + " s";
  if (all < 3600) return Math.floor(all / 60) + " min " + (all % 60) + " s";
  if (all < 172800) return Math.floor(all / 3600) + " h " + (Math.floor(all / 60) % 60) + " min";
  return Math.floor(all / 86400) + " d " + (Math.floor(all / 3600) % 24) + " h";
}

const state = { refreshed: 0, overview: null, heard: 0, order: null, losses: -1, from: 0, seats: new Map(), all: [], view: null };

// ---- the latest overview ----

function showOverview(overview) {
  const before = state.overview;
  state.overview = overview;
  state.heard = performance.now();
  const name = overview.name || "run " + overview.run;
  document.title = (overview.window === null ? "" : "w" + overview.window + " · ") + name + " · Mettle";
  $("title").replaceChildren("Mettle run " + overview.run + (overview.name ? ": " : ""), theirs(overview.name || ""),
    overview.parameters ? el("span", { class: "small" }, " " + thousands(overview.parameters) + " parameters") : "");
  alarm(overview);
  $("window").textContent = overview.window === null ? "not begun" : overview.window;
  $("phase").textContent = overview.paused ? "paused" : overview.phase || "";
  showLoss(overview);
  const rate = overview.tokens_per_second;
  $("work").textContent = rate === null ? overview.finalised - overview.void : thousands(rate);
  $("work-unit").textContent = rate === null ? "merged windows" : "tokens/s";
  const merge = overview.last_merge;
  $("work-note").textContent = [
    overview.tokens === null ? null : thousands(overview.tokens) + " tokens",
    overview.finalised + " windows" + (overview.void ? ", " + overview.void + " void" : ""),
    merge ? merge.contributions + " merged in window " + merge.window + ", " + thousands(merge.bytes) + "B" : null,
  ].filter(Boolean).join("; ");
  showStates(overview);
  showTroubles(overview.troubles);
  tick();
  const changed = !before || before.seats.order !== overview.seats.order;
  if (state.view === "overview" && REFRESH_EVERY < performance.now() - state.refreshed) refreshOverview();
  if (state.view === "timeline") refreshTimeline(changed);
}

function alarm(overview) {
  const text = overview.silent_seconds !== null
    ? "No answer from the chain for " + duration(overview.silent_seconds)
    : overview.models_agree === false ? "Models differ: a node does not hold the chain's model" : "";
  if ($("alarm").textContent !== text) $("alarm").textContent = text;
  $("alarm").hidden = !text;
}

function showLoss(overview) {
  const kind = overview.loss_is_of_sample ? "Held-out loss" : "Loss on common sequences";
  $("card-loss").textContent = kind;
  const at = overview.loss;
  $("loss").textContent = at ? at.estimate.loss.toFixed(3) : "–";
  $("loss-error").textContent = at ? "± " + at.estimate.error.toFixed(3) : "not measured yet";
  const parts = [];
  if (overview.start_loss && at && overview.start_loss.window !== at.window) {
    parts.push("start " + overview.start_loss.estimate.loss.toFixed(2));
  }
  if (overview.unigram) parts.push("unigram baseline " + overview.unigram.loss.toFixed(2));
  if (at) parts.push(at.estimate.sequences + " sequences");
  $("loss-note").textContent = parts.join("; ");
  $("chart-title").textContent = kind + " by window";
}

function showStates(overview) {
  const list = el("dl", { class: "states" });
  for (const role of ["miner", "validator"]) {
    const states = overview.states[role];
    const total = states.reduce((sum, one) => sum + one.count, 0);
    const words = states.map((one) => el("span", { class: one.mark }, one.count + " " + (one.word || "waiting")));
    list.append(el("dt", {}, total + " " + role + (total === 1 ? "" : "s")), el("dd", {}, ...words));
  }
  $("states").replaceChildren(list);
}

function showTroubles(troubles) {
  $("troubles-card").hidden = !troubles.length;
  $("troubles").replaceChildren(...troubles.map((one) =>
    el("li", {}, el("span", { class: "note" }, "window " + one.window + "  "), theirs(one.text))));
}

// The time left runs on between two events.
function tick() {
  const overview = state.overview;
  if (!overview) return;
  const since = (performance.now() - state.heard) / 1000;
  const seconds = overview.block_seconds;
  if (overview.window === null) {
    $("left").textContent = "starts in " + duration(overview.starts_in_blocks * seconds - since);
    return;
  }
  const blocks = overview.blocks_per_window;
  const offset = Math.min(blocks, overview.offset + since / seconds);
  const ends = [...overview.deadlines.map((deadline) => deadline + 1), blocks];
  const left = $("phases");
  if (left.children.length !== ends.length) left.replaceChildren(...ends.map(() => el("i", {}, el("b", {}))));
  let from = 0;
  ends.forEach((end, at) => {
    const part = left.children[at];
    part.style.flexGrow = end - from;
    part.style.flexBasis = 0;
    part.firstChild.style.width = Math.max(0, Math.min(1, (offset - from) / (end - from))) * 100 + "%";
    part.title = PHASES[at];
    from = end;
  });
  const phaseEnd = ends.find((end) => overview.offset < end) || blocks;
  const text = "phase ends in " + duration((phaseEnd - offset) * seconds) + ", window in "
    + duration((blocks - offset) * seconds) + " of " + duration(blocks * seconds) + "; block " + overview.block;
  $("left").textContent = text;
  left.setAttribute("aria-label", (overview.phase || "") + ": " + text);
}

// ---- overview: curve and seats ----

let refreshing = false;
async function refreshOverview() {
  if (refreshing) return;
  refreshing = true;
  state.refreshed = performance.now();
  try {
    await Promise.all([refreshCurve(), refreshSeats()]);
  } catch (error) {
    live(false, error.message);
  } finally {
    refreshing = false;
  }
}

async function refreshCurve() {
  const { losses, unigram } = state.overview;
  if (state.losses === losses) return;
  const curve = await get("losses?points=" + CURVE_POINTS);
  state.losses = losses;
  drawCurve(curve, unigram);
}

let chart = null;
function drawCurve(curve, unigram) {
  const box = $("chart");
  const count = curve.windows.length;
  $("chart-note").textContent = (state.overview.loss_is_of_sample
    ? "In nats per token, on the same random sample of held-out sequences in every window; the band is one standard error."
    : "In nats per token, on the window's common sequences, which differ from window to window, from public receipts; the band is one standard error.")
    + (1 < curve.step ? " One of " + curve.step + " windows is drawn." : "") + (count ? " Drag to zoom, double-click to go back." : " Not measured yet.");
  if (!count) return;
  const data = [
    curve.windows, curve.losses,
    curve.losses.map((loss, at) => loss + curve.errors[at]), curve.losses.map((loss, at) => loss - curve.errors[at]),
    curve.windows.map(() => (unigram ? unigram.loss : null)),
  ];
  if (chart) return chart.setData(data, chart.scales.x.min <= curve.windows[0] && curve.windows[count - 2] <= chart.scales.x.max);
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  const axis = { stroke: of("--dim"), grid: { stroke: of("--line"), width: 1 }, ticks: { stroke: of("--line"), width: 1 } };
  const shown = (digits) => (_, value) => (value === null || value === undefined ? "–" : value.toFixed(digits));
  const hidden = { points: { show: false }, stroke: "transparent", width: 0, value: () => "" };
  chart = new uPlot({
    width: Math.max(260, box.clientWidth), height: curveHeight(),
    scales: { x: { time: false }, y: { range: curveRange } },
    legend: { live: true },
    axes: [
      { ...axis, size: 32, values: (_, all) => all.map((value) => (Number.isInteger(value) ? value : "")) },
      { ...axis, size: 50, values: (_, all) => all.map((value) => value.toFixed(2)) },
    ],
    series: [
      { label: "window", value: shown(0) },
      { label: "loss", stroke: of("--accent"), width: 2, value: shown(3) },
      { label: "plus error", ...hidden }, { label: "minus error", ...hidden },
      { label: "unigram baseline", stroke: of("--poor"), width: 1.5, dash: [5, 4], auto: false, points: { show: false }, value: shown(3) },
    ],
    bands: [{ series: [2, 3], fill: of("--band") }],
    hooks: { draw: [errorBars] },
  }, data, box);
  for (const row of box.querySelectorAll(".u-legend .u-series")) {
    if (row.textContent.includes("error")) row.hidden = true;
  }
  if (!unigram) box.querySelectorAll(".u-legend .u-series")[4].hidden = true;
}

const curveHeight = () => (innerWidth < 640 ? 220 : 300);

// The range of the losses that are shown, without the first fifth of a long curve.
function curveRange(plot, low, high) {
  if (low === null || high === null) return [0, 1];
  const [windows, losses] = plot.data;
  const { min, max } = plot.scales.x;
  const isWhole = (min ?? windows[0]) <= windows[0] && windows[windows.length - 1] <= (max ?? Infinity);
  if (isWhole && CURVE_SETTLED <= losses.length) {
    const settled = plot.data[2].slice(Math.floor(losses.length / 5));
    high = Math.max(...settled);
    low = Math.min(...plot.data[3]);
  }
  const pad = (high - low || 0.01) * 0.06;
  return [low - pad, high + pad];
}

// A bar for each error where there is room; the band shows it everywhere.
function errorBars(plot) {
  const [windows, losses, above, below] = plot.data;
  const { ctx, bbox } = plot;
  if (windows.length < 2 || bbox.width / windows.length < 9 * devicePixelRatio) return;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--accent").trim();
  ctx.lineWidth = devicePixelRatio;
  const half = 3 * devicePixelRatio;
  ctx.beginPath();
  losses.forEach((_, at) => {
    const x = plot.valToPos(windows[at], "x", true);
    const [top, low] = [plot.valToPos(above[at], "y", true), plot.valToPos(below[at], "y", true)];
    ctx.moveTo(x, top);
    ctx.lineTo(x, low);
    ctx.moveTo(x - half, top);
    ctx.lineTo(x + half, top);
    ctx.moveTo(x - half, low);
    ctx.lineTo(x + half, low);
  });
  ctx.stroke();
  ctx.restore();
}

async function refreshSeats() {
  const answer = await get("seats?from=" + state.from + "&limit=" + SEATS_PER_PAGE);
  if (answer.total <= state.from && state.from) state.from = 0;
  const rows = [];
  let role = null;
  for (const seat of answer.seats) {
    state.seats.set(seat.uid, seat);
    if (seat.role !== role) {
      role = seat.role;
      rows.push(el("tr", { class: "role" }, el("td", { colspan: 10 }, role === "validator" ? "validators" : "miners")));
    }
    rows.push(seatRow(seat));
  }
  const focused = $("seats").contains(document.activeElement) && document.activeElement.getAttribute("href");
  $("seats").tBodies[0].replaceChildren(...rows);
  if (focused) $("seats").querySelector('a[href="' + focused + '"]')?.focus({ preventScroll: true });
  const last = Math.min(answer.total, state.from + SEATS_PER_PAGE);
  $("pager").hidden = answer.total <= SEATS_PER_PAGE;
  $("range").textContent = state.from + 1 + " to " + last + " of " + answer.total;
  $("earlier").disabled = state.from === 0;
  $("later").disabled = answer.total <= last;
}

function seatRow(seat) {
  const isMiner = seat.role === "miner";
  const cell = (kind, ...children) => el("td", { class: kind }, ...children);
  const bar = el("span", { class: "bar", "aria-hidden": "true" }, el("b", {}));
  bar.firstChild.style.width = Math.min(1, seat.weight || 0) * 100 + "%";
  const agreed = isMiner ? seat.attested : seat.selected - seat.minority_votes + (seat.minority_votes ? " of " + seat.selected : "");
  return el("tr", {},
    cell("", el("a", { href: "#/seat/" + seat.uid }, theirs(seat.name)), seat.strategy ? " (" : "",
      seat.strategy ? theirs(seat.strategy) : "", seat.strategy ? ")" : ""),
    cell("", el("span", { class: seat.mark }, seat.state || "–"), seat.detail ? " " + seat.detail : ""),
    cell("n", seat.weight === null ? "–" : percent(seat.weight), 0.02 < seat.weight ? bar : ""),
    cell("n", seat.paid), cell("n rank2", seat.stake), cell("n rank2", number(seat.score, 3)),
    cell("n rank3", seat.tokens_per_second === null ? "–" : thousands(seat.tokens_per_second)),
    cell("n rank3", isMiner ? seat.committed : seat.attested),
    cell("n rank2" + (seat.minority_votes ? " bad" : ""), agreed),
    cell("n rank3", isMiner ? seat.selected : "–"));
}

// ---- timeline ----

let timeline = null;
function openTimeline() {
  if (timeline) return;
  timeline = new Timeline({
    scroller: $("lanes"), canvas: $("canvas"), extent: $("extent"),
    read: (window, uid) => get("tile?window=" + window + "&uid=" + uid),
    open: (seat, window) => showEvidence(seat, window),
    say: (text) => ($("cursor").textContent = text),
  });
  const shown = "MsgcumrvVadn";
  $("legend").replaceChildren(...[...shown].map((letter) => el("li", {}, fateIcon(letter), FATES[letter].word)));
}

async function refreshTimeline(changed) {
  const overview = state.overview;
  if (!overview || !overview.windows) return;
  if (changed || !state.all.length) {
    try {
      state.all = await allSeats();
    } catch (error) {
      return live(false, error.message);
    }
    timeline.setSeats(state.all);
  }
  const [first, last] = overview.windows;
  timeline.setWindows(first, last, {
    deadlines: overview.deadlines, blocks: overview.blocks_per_window, window: overview.window, offset: overview.offset,
  });
  const at = overview.window + ":" + overview.phase;
  if (state.phase !== at || REFRESH_EVERY < performance.now() - state.refreshed) {
    state.refreshed = performance.now();
    timeline.refresh();
  }
  state.phase = at;
}

async function allSeats() {
  const all = [];
  for (let total = 1; all.length < total; ) {
    const answer = await get("seats?from=" + all.length);
    total = answer.total;
    if (!answer.seats.length) break;
    all.push(...answer.seats);
  }
  all.forEach((seat) => state.seats.set(seat.uid, seat));
  return all;
}

// ---- evidence ----

let returnTo = null;
let asked = 0;
async function showEvidence(seat, window) {
  const mine = (asked += 1);
  if ($("panel").hidden) returnTo = document.activeElement;
  $("panel").hidden = false;
  document.body.classList.add("with-panel");
  $("panel-title").replaceChildren(theirs(seat.name), ", window " + window);
  $("panel-body").replaceChildren(el("p", { class: "note" }, "reading chain and receipts …"));
  $("panel").focus({ preventScroll: true });
  const body = await evidence(seat, window).catch((error) => el("p", { class: "bad" }, error.message));
  if (mine !== asked) return;
  const step = (to, label) => el("button", { type: "button", onclick: () => showEvidence(seat, to) }, label);
  $("panel-body").replaceChildren(
    el("p", { class: "pager" }, window ? step(window - 1, "◀ window " + (window - 1)) : "",
      step(window + 1, "window " + (window + 1) + " ▶"), el("a", { href: "#/seat/" + seat.uid + "/" + window }, "seat")),
    body);
}

function closePanel() {
  asked += 1;
  $("panel").hidden = true;
  document.body.classList.remove("with-panel");
  if (returnTo) returnTo.focus();
  returnTo = null;
}

async function evidence(seat, window) {
  const cell = await get("cell?uid=" + seat.uid + "&window=" + window);
  return el("div", {}, whyOf(cell), proofOf(cell));
}

// What `mettle why` says.
function whyOf(cell) {
  const step = (one) => el("li", {},
    el("span", { class: one.verdict === "neutral" || one.verdict === "open" ? "plain" : one.verdict, role: "img",
      "aria-label": MARK_WORDS[one.verdict] }, MARKS[one.verdict]),
    el("span", { class: "what" }, one.name), theirs(one.text));
  return el("div", { class: "why" },
    el("ul", { class: "steps" }, ...cell.steps.map(step)),
    el("h3", {}, "To earn more"), el("ul", { class: "advice" }, ...cell.advice.map((one) => el("li", {}, one))));
}

function proofOf(cell) {
  const facts = el("dl", { class: "facts" });
  const fact = (name, value, kind) => {
    if (value !== null && value !== undefined && value !== "") facts.append(el("dt", {}, name), el("dd", {}, theirs(value, kind)));
  };
  fact("commitment", cell.commitment, "mono");
  fact("object", cell.object, "mono");
  fact("endpoint", cell.endpoint, "mono");
  fact("own vote", cell.vote, "mono");
  fact("merged update", cell.merged, "mono");
  fact("window's model", cell.lineage, "mono");
  const all = el("div", { class: "evidence" }, el("h3", {}, "Evidence"), facts);
  if (cell.attestations && cell.attestations.length) {
    const row = (one) => el("tr", {}, el("td", {}, "uid " + one.validator),
      el("td", { class: one.verdict === "valid" ? "good" : one.verdict === "faulty" ? "bad" : "poor" }, one.verdict),
      el("td", { class: "n" }, one.stake));
    all.append(el("h3", {}, "Verdicts, with the part of the stake"),
      el("table", {}, el("tbody", {}, ...cell.attestations.map(row))));
  }
  for (const one of cell.receipts || []) {
    const part = el("dl", { class: "facts" });
    part.append(el("dt", {}, "uid " + one.validator),
      el("dd", {}, one.says ? theirs(one.says) : "", one.digest ? el("div", { class: "mono" }, one.digest) : ""));
    if (one === cell.receipts[0]) all.append(el("h3", {}, "Receipts"));
    all.append(part);
  }
  return all;
}

// ---- a seat ----

const knownSeat = (uid) => state.seats.get(uid) || { uid, name: "uid " + uid };

async function openSeat(uid, window) {
  if (!state.seats.has(uid)) await allSeats().catch(() => []);
  if (state.seat !== uid) return;
  const known = knownSeat(uid);
  $("seat-title").replaceChildren(theirs(known.name), known.name === "uid " + uid ? "" : " (uid " + uid + ")");
  $("seat-facts").replaceChildren(el("dd", {}, "reading the chain …"));
  $("seat-pay").replaceChildren();
  $("seat-why").replaceChildren();
  showStrip(known, window);
  try {
    const seat = await get("seat?uid=" + uid);
    if (state.seat !== uid) return;
    showSeat(seat, known);
  } catch (error) {
    if (state.seat === uid) $("seat-facts").replaceChildren(el("dd", { class: "bad" }, error.message));
  }
}

function showSeat(seat, known) {
  const facts = $("seat-facts");
  facts.replaceChildren();
  const fact = (name, value, kind) => {
    if (value !== null && value !== undefined && value !== "") facts.append(el("dt", {}, name), el("dd", {}, theirs(value, kind)));
  };
  const isMiner = seat.role === "miner";
  fact("role", seat.role + (known.strategy ? ", " + known.strategy : ""));
  fact("now", known.state ? known.state + (known.detail ? " " + known.detail : "") : null);
  fact("soon", seat.pending);
  fact("weight", isMiner ? seat.weight + " of 65535, " + seat.incentive + " of the miners' pay"
    : seat.trust + " of its weights within consensus, " + seat.dividends + " of the validators' pay");
  fact("paid", seat.earned + ", of which " + seat.claimable + " can be claimed");
  fact("stake", seat.stake + (seat.nominated === "0.00 MTL" ? "" : ", and " + seat.nominated + " nominated"));
  fact("since block", seat.registered_at);
  fact("last attested", seat.last_attested === null ? null : "window " + seat.last_attested);
  fact("endpoint", seat.endpoint, "mono");
  fact("hotkey", seat.hotkey, "mono");
  fact("coldkey", seat.coldkey, "mono");
  const row = (slip) => el("tr", {}, el("td", {}, slip.epoch), el("td", { class: "n" }, slip.amount),
    el("td", { class: "n" }, slip.share), el("td", { class: "n" }, slip.merged), el("td", { class: "n rank2" }, slip.pot));
  const head = ["epoch", "paid", "share", "merged windows", "the run paid"].map((name, at) =>
    el("th", { scope: "col", class: at ? (at === 4 ? "n rank2" : "n") : "" }, name));
  $("seat-pay").replaceChildren(el("thead", {}, el("tr", {}, ...head)),
    el("tbody", {}, ...(seat.payslips.length ? seat.payslips.map(row) : [el("tr", {}, el("td", { colspan: 5 }, "not paid yet"))])));
}

// The last windows as buttons; the chosen one, or the last one that is over, is explained.
async function showStrip(seat, chosen) {
  const overview = state.overview;
  if (!overview || !overview.windows) return;
  const [first, last] = overview.windows;
  const from = Math.max(first, last - STRIP + 1);
  const base = seat.uid - (seat.uid % TILE);
  const tiles = [];
  for (let window = from - (from % TILE); window <= last; window += TILE) tiles.push(get("tile?window=" + window + "&uid=" + base));
  const read = await Promise.all(tiles).catch(() => []);
  if (state.seat !== seat.uid) return;
  const letter = (window) => {
    const tile = read.find((one) => one.window <= window && window < one.window + TILE);
    return tile ? tile.fates[seat.uid % TILE][window % TILE] : ABSENT;
  };
  const buttons = [];
  for (let window = from; window <= last; window += 1) {
    const fate = FATES[letter(window)];
    const word = "window " + window + ": " + (fate ? fate.word : "no seat");
    buttons.push(el("button", { type: "button", title: word, "aria-label": word, "data-window": window,
      onclick: () => (location.hash = "#/seat/" + seat.uid + "/" + window) }, fateIcon(letter(window), 12, 18)));
  }
  $("seat-windows").replaceChildren(...buttons);
  explainWindow(seat, chosen === undefined ? Math.max(from, last - 1) : chosen);
}

async function explainWindow(seat, window) {
  const mine = (asked += 1);
  for (const button of $("seat-windows").children) {
    button.setAttribute("aria-pressed", String(Number(button.dataset.window) === window));
  }
  const head = el("h3", { class: "small" }, "Window " + window);
  $("seat-why").replaceChildren(head, el("p", { class: "note" }, "reading chain and receipts …"));
  const body = await evidence(seat, window).catch((error) => el("p", { class: "bad" }, error.message));
  if (mine === asked) $("seat-why").replaceChildren(head, body);
}

// ---- pages and events ----

function route() {
  const [page, uid, window] = location.hash.replace(/^#\/?/, "").split("/");
  const view = page === "timeline" || page === "seat" ? page : "overview";
  const isNew = state.view !== view;
  state.view = view;
  for (const name of ["overview", "timeline", "seat"]) $("view-" + name).hidden = name !== view;
  for (const name of ["overview", "timeline"]) {
    if (name === view) $("tab-" + name).setAttribute("aria-current", "page");
    else $("tab-" + name).removeAttribute("aria-current");
  }
  if (!$("panel").hidden) closePanel();
  if (view === "timeline") {
    openTimeline();
    timeline.resize();
    refreshTimeline(isNew);
  } else if (view === "overview" && state.overview) {
    refreshOverview();
    resizeChart();
  } else if (view === "seat") {
    const number = Number(uid);
    const isSame = !isNew && state.overview && state.seat === number;
    state.seat = number;
    const chosen = window === undefined ? undefined : Number(window);
    if (!state.overview) return;
    if (isSame && chosen !== undefined) explainWindow(knownSeat(number), chosen);
    else openSeat(number, chosen);
  }
  if (isNew && view !== "timeline") scrollTo(0, 0);
}

function live(isOn, text) {
  $("live").classList.toggle("on", isOn);
  $("live").textContent = text;
}

function resizeChart() {
  if (chart && $("chart").clientWidth) chart.setSize({ width: Math.max(260, $("chart").clientWidth), height: curveHeight() });
}

function start() {
  $("panel-close").addEventListener("click", closePanel);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !$("panel").hidden) closePanel();
  });
  $("earlier").addEventListener("click", () => {
    state.from = Math.max(0, state.from - SEATS_PER_PAGE);
    refreshSeats();
  });
  $("later").addEventListener("click", () => {
    state.from += SEATS_PER_PAGE;
    refreshSeats();
  });
  $("zoom-in").addEventListener("click", () => timeline.zoomBy(1));
  $("zoom-out").addEventListener("click", () => timeline.zoomBy(-1));
  $("latest").addEventListener("click", () => timeline.toLatest());
  $("goto").addEventListener("change", (event) => {
    if (event.target.value !== "") timeline.goTo({ window: Number(event.target.value) });
  });
  $("find").addEventListener("change", (event) => {
    const wanted = event.target.value.trim().toLowerCase();
    const byUid = state.all.findIndex((seat) => String(seat.uid) === wanted);
    const lane = byUid === -1 ? state.all.findIndex((seat) => seat.name.toLowerCase().includes(wanted)) : byUid;
    if (wanted && lane !== -1) timeline.goTo({ lane });
    else if (wanted) $("cursor").textContent = "no such seat";
  });
  addEventListener("hashchange", route);
  addEventListener("resize", resizeChart);
  // Colours of the curve are read once: another scheme draws another one.
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    if (chart) chart.destroy();
    chart = null;
    state.losses = -1;
    if (state.overview && state.view === "overview") refreshOverview();
  });
  setInterval(tick, 250);
  listen();
  route();
}

// A browser gives up for good after an answer such as 503: another try after some seconds.
function listen() {
  const events = new EventSource("/api/events");
  events.addEventListener("overview", (event) => {
    const isFirst = !state.overview;
    live(true, "live");
    showOverview(JSON.parse(event.data));
    if (isFirst) {
      state.seat = null;
      route();
    }
  });
  events.onerror = () => {
    live(false, "connecting again …");
    if (events.readyState === EventSource.CLOSED) setTimeout(listen, 5000 + 5000 * Math.random());
  };
}

start();
