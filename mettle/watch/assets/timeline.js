// The timeline of a run: a row for each seat, a column for each window, drawn on one canvas. Only what is visible is
// fetched, in tiles of 64 windows and 64 seats, and drawn.
"use strict";

// What became of a seat in a window: its word, its colour, and how far the work came, as a height. The height says the
// same as the colour.
const FATES = {
  w: { word: "waiting", colour: "waiting", height: 0.12 },
  m: { word: "missed: no commitment", colour: "missed", height: 0, cross: false, dot: true },
  c: { word: "committed", colour: "committed", height: 0.3 },
  u: { word: "committed, not seen by two thirds", colour: "unseen", height: 0.3 },
  g: { word: "gathered: valid for two thirds, not merged", colour: "gathered", height: 0.5 },
  s: { word: "scored, not merged", colour: "scored", height: 0.7 },
  l: { word: "selected", colour: "merged", height: 0.85 },
  M: { word: "merged", colour: "merged", height: 1 },
  v: { word: "selected, but the window is void", colour: "void", height: 0.85 },
  r: { word: "refused: faulty for two thirds", colour: "refused", height: 0, cross: true },
  a: { word: "attested, no vote", colour: "unseen", height: 0.5 },
  V: { word: "attested and voted", colour: "voted", height: 1 },
  d: { word: "voted against two thirds", colour: "dissented", height: 1 },
  n: { word: "no attestation, no vote", colour: "missed", height: 0, dot: true },
};
const ABSENT = ".";
const TILE = 64;
const TILES_MAX = 400;
const FETCHES_MAX = 4;
const WIDTHS = [3, 4, 6, 9, 14, 22, 40, 80, 140];
const LANE = 18;
const HEAD = 34;
const PHASES = ["train", "reveal", "attest", "vote", "finalise"];

function colours() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  const all = { card: of("--card"), line: of("--line"), text: of("--text"), dim: of("--dim"), accent: of("--accent") };
  for (const fate of Object.values(FATES)) all[fate.colour] = of("--fate-" + fate.colour);
  return all;
}

// Marks that turn the direction of a text could make one name look like another.
function flat(text) {
  return text.replace(/[\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");
}

// One cell. Many of a kind are one path, so `path` gets the shapes and the caller fills.
function addCell(path, fate, x, y, width, height) {
  const gap = width < 6 ? 0 : 1;
  if (fate.cross) {
    path.rect(x, y + height * 0.1, width - gap, height * 0.22);
    path.rect(x, y + height * 0.68, width - gap, height * 0.22);
  } else if (fate.dot) {
    const size = Math.min(width - gap, height * 0.4);
    path.rect(x + (width - gap - size) / 2, y + height - size - 1, size, size);
  } else {
    const tall = Math.max(2, Math.round(height * fate.height));
    path.rect(x, y + height - tall, width - gap, tall);
  }
}

// A small picture of one fate, for the legend and the seat page.
function fateIcon(letter, width = 14, height = 14) {
  const canvas = document.createElement("canvas");
  const ratio = devicePixelRatio || 1;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.width = width + "px";
  canvas.style.height = height + "px";
  const fate = FATES[letter];
  if (!fate) return canvas;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.beginPath();
  addCell(context, fate, 0, 0, width, height);
  context.fillStyle = colours()[fate.colour];
  context.fill();
  return canvas;
}

// Tiles, fetched once if they are settled, and again after an event if not.
class Tiles {
  constructor(read, changed) {
    this.read = read;
    this.changed = changed;
    this.tiles = new Map();
    this.wanted = [];
    this.running = 0;
    this.epoch = 0;
  }

  // Tiles that may have changed are read again when they are next seen; until then they stay on the screen.
  refresh() {
    this.epoch += 1;
  }

  at(window, uid) {
    const [w, u] = [window - (window % TILE), uid - (uid % TILE)];
    const key = w + ":" + u;
    const tile = this.tiles.get(key);
    if (tile) {
      this.tiles.delete(key);
      this.tiles.set(key, tile);
    }
    const isStale = !tile || (!tile.settled && tile.epoch !== this.epoch);
    if (isStale && !this.wanted.some((one) => one.key === key)) this.wanted.push({ key, w, u });
    return tile;
  }

  letter(window, uid) {
    const tile = this.at(window, uid);
    return tile ? tile.fates[uid % TILE][window % TILE] : undefined;
  }

  // Called after drawing: what was asked for last is what is visible.
  fetchWanted() {
    while (this.running < FETCHES_MAX && this.wanted.length) {
      const { key, w, u } = this.wanted.pop();
      const epoch = this.epoch;
      this.running += 1;
      this.read(w, u)
        .then((tile) => {
          this.tiles.set(key, Object.assign(tile, { epoch }));
          while (TILES_MAX < this.tiles.size) this.tiles.delete(this.tiles.keys().next().value);
        })
        .catch(() => this.tiles.set(key, Object.assign(this.tiles.get(key) || blankTile(), { epoch })))
        .finally(() => {
          this.running -= 1;
          this.changed();
        });
    }
    this.wanted.length = 0;
  }
}

function blankTile() {
  return { settled: false, outcomes: ABSENT.repeat(TILE), fates: Array(TILE).fill(ABSENT.repeat(TILE)) };
}

class Timeline {
  // `open(seat, window)` shows the evidence; `say(text)` names what the cursor is on.
  constructor({ scroller, canvas, extent, read, open, say }) {
    Object.assign(this, { scroller, canvas, extent, open, say });
    this.seats = [];
    this.first = 0;
    this.last = 0;
    this.schedule = null;
    this.zoom = 4;
    this.cursor = null;
    this.follows = true;
    this.pending = false;
    this.tiles = new Tiles(read, () => {
      if (this.cursor && this.isUnknown) this.sayCell(this.cursor);
      this.draw();
    });
    this.palette = colours();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.palette = colours();
      this.draw();
    });
    scroller.addEventListener("scroll", () => {
      this.follows = scroller.scrollWidth - scroller.clientWidth - scroller.scrollLeft < this.width;
      this.draw();
    }, { passive: true });
    scroller.addEventListener("keydown", (event) => this.key(event));
    scroller.addEventListener("click", (event) => this.click(event));
    scroller.addEventListener("mousemove", (event) => this.hover(event));
    scroller.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.zoomBy(event.deltaY < 0 ? 1 : -1, event.offsetX);
    }, { passive: false });
    new ResizeObserver(() => this.resize()).observe(scroller);
  }

  get width() {
    return WIDTHS[this.zoom];
  }

  get gutter() {
    return this.scroller.clientWidth < 600 ? 92 : 150;
  }

  setSeats(seats) {
    this.seats = seats;
    if (this.cursor && !seats[this.cursor.lane]) this.cursor = null;
    this.resize();
  }

  setWindows(first, last, schedule) {
    this.schedule = schedule;
    if (this.first === first && this.last === last) return this.draw();
    this.first = first;
    this.last = last;
    this.tiles.refresh();
    this.resize();
  }

  refresh() {
    this.tiles.refresh();
    this.draw();
  }

  resize() {
    const { scroller, canvas, extent } = this;
    const [width, height] = [scroller.clientWidth, scroller.clientHeight];
    if (!width) return;
    const ratio = devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = width + "px";
      canvas.style.height = height + "px";
    }
    const follows = this.follows;
    const windows = Math.max(0, this.last - this.first + 1);
    extent.style.width = this.gutter + windows * this.width + 8 + "px";
    extent.style.height = HEAD + this.seats.length * LANE + 4 + "px";
    if (follows) scroller.scrollLeft = scroller.scrollWidth;
    this.follows = follows;
    this.draw();
  }

  zoomBy(step, at = this.scroller.clientWidth / 2) {
    const { scroller, gutter } = this;
    const zoom = Math.max(0, Math.min(WIDTHS.length - 1, this.zoom + step));
    if (zoom === this.zoom) return;
    const middle = (scroller.scrollLeft + at - gutter) / this.width;
    const follows = this.follows;
    this.zoom = zoom;
    this.follows = false;
    this.resize();
    scroller.scrollLeft = follows ? scroller.scrollWidth : middle * this.width - at + gutter;
    this.follows = follows;
    this.draw();
  }

  toLatest() {
    this.follows = true;
    this.scroller.scrollLeft = this.scroller.scrollWidth;
    this.draw();
  }

  // The cell at a point of the canvas; `null` outside of the cells.
  cellAt(x, y) {
    const lane = Math.floor((y + this.scroller.scrollTop - HEAD) / LANE);
    const window = this.first + Math.floor((x + this.scroller.scrollLeft - this.gutter) / this.width);
    if (x < this.gutter || y < HEAD || !this.seats[lane] || window < this.first || this.last < window) return null;
    return { lane, window };
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  click(event) {
    const [x, y] = this.point(event);
    const cell = this.cellAt(x, y);
    if (cell) {
      this.cursor = cell;
      this.sayCell(cell);
      this.draw();
      this.open(this.seats[cell.lane], cell.window);
    } else if (x < this.gutter && HEAD < y) {
      const lane = Math.floor((y + this.scroller.scrollTop - HEAD) / LANE);
      if (this.seats[lane]) location.hash = "#/seat/" + this.seats[lane].uid;
    }
  }

  hover(event) {
    const cell = this.cellAt(...this.point(event));
    this.canvas.style.cursor = cell ? "pointer" : "";
    if (cell) this.sayCell(cell);
  }

  sayCell({ lane, window }) {
    const seat = this.seats[lane];
    const letter = this.tiles.letter(window, seat.uid);
    this.isUnknown = letter === undefined;
    const fate = letter === undefined ? "…" : letter === ABSENT ? "no seat" : FATES[letter] ? FATES[letter].word : "?";
    this.say(`${flat(seat.name)}, window ${window}: ${fate}`);
  }

  key(event) {
    const moves = {
      ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0],
      PageUp: [-10, 0], PageDown: [10, 0], Home: [0, -Infinity], End: [0, Infinity],
    };
    if (event.key === "+" || event.key === "-") {
      this.zoomBy(event.key === "+" ? 1 : -1);
    } else if (event.key === "Enter" && this.cursor) {
      this.open(this.seats[this.cursor.lane], this.cursor.window);
    } else if (moves[event.key] && this.seats.length) {
      const [down, right] = moves[event.key];
      const from = this.cursor || { lane: 0, window: this.last };
      const to = (value, low, high) => Math.max(low, Math.min(high, value));
      this.cursor = {
        lane: to(from.lane + down, 0, this.seats.length - 1),
        window: to(from.window + right, this.first, this.last),
      };
      this.show(this.cursor);
      this.sayCell(this.cursor);
    } else {
      return;
    }
    event.preventDefault();
  }

  goTo({ lane, window }) {
    const from = this.cursor || { lane: 0, window: this.last };
    this.cursor = {
      lane: lane === undefined ? from.lane : lane,
      window: window === undefined ? from.window : Math.max(this.first, Math.min(this.last, window)),
    };
    this.show(this.cursor);
    this.sayCell(this.cursor);
  }

  // Scrolls a cell into view.
  show({ lane, window }) {
    const { scroller } = this;
    const [x, y] = [(window - this.first) * this.width, lane * LANE];
    const [right, low] = [scroller.clientWidth - this.gutter - this.width, scroller.clientHeight - HEAD - LANE];
    if (x < scroller.scrollLeft) scroller.scrollLeft = x;
    if (scroller.scrollLeft + right < x) scroller.scrollLeft = x - right;
    if (y < scroller.scrollTop) scroller.scrollTop = y;
    if (scroller.scrollTop + low < y) scroller.scrollTop = y - low;
    this.draw();
  }

  draw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.paint();
      this.tiles.fetchWanted();
    });
  }

  paint() {
    const { scroller, canvas, palette, width, gutter } = this;
    const context = canvas.getContext("2d");
    const ratio = devicePixelRatio || 1;
    const [wide, high] = [canvas.width / ratio, canvas.height / ratio];
    if (!wide || !high) return;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = palette.card;
    context.fillRect(0, 0, wide, high);
    const [left, top] = [scroller.scrollLeft, scroller.scrollTop];
    const firstLane = Math.max(0, Math.floor(top / LANE));
    const lastLane = Math.min(this.seats.length - 1, Math.floor((top + high - HEAD) / LANE));
    const firstColumn = Math.max(0, Math.floor(left / width));
    const lastColumn = Math.min(this.last - this.first, Math.floor((left + wide - gutter) / width));
    const x = (column) => gutter + column * width - left;
    const y = (lane) => HEAD + lane * LANE - top;

    const paths = new Map();
    for (let lane = firstLane; lane <= lastLane; lane += 1) {
      const uid = this.seats[lane].uid;
      let tile, from;
      for (let column = firstColumn; column <= lastColumn; column += 1) {
        const window = this.first + column;
        if (from === undefined || TILE <= window - from) {
          from = window - (window % TILE);
          tile = this.tiles.at(window, uid);
        }
        const letter = tile ? tile.fates[uid % TILE][window - from] : ABSENT;
        const fate = FATES[letter];
        if (!fate) continue;
        let path = paths.get(fate);
        if (!path) paths.set(fate, (path = new Path2D()));
        addCell(path, fate, x(column), y(lane) + 3, width, LANE - 5);
      }
    }
    for (const [fate, path] of paths) {
      context.fillStyle = palette[fate.colour];
      context.fill(path);
    }

    if (this.cursor) {
      const { lane, window } = this.cursor;
      context.strokeStyle = palette.accent;
      context.lineWidth = 2;
      context.strokeRect(x(window - this.first) - 1, y(lane) + 1, width + 1, LANE - 1);
    }
    this.paintHead(context, { firstColumn, lastColumn, x, wide });
    this.paintNames(context, { firstLane, lastLane, y, high });
  }

  // Each window as a bar: its phases where there is room, and its outcome.
  paintHead(context, { firstColumn, lastColumn, x, wide }) {
    const { palette, width, gutter, schedule } = this;
    context.fillStyle = palette.card;
    context.fillRect(0, 0, wide, HEAD);
    context.save();
    context.beginPath();
    context.rect(gutter, 0, wide - gutter, HEAD);
    context.clip();
    context.font = "11px system-ui, sans-serif";
    const every = [1, 2, 5, 10, 20, 50, 100, 200].find((step) => 46 <= step * width) || 500;
    for (let column = firstColumn; column <= lastColumn; column += 1) {
      const window = this.first + column;
      const lane = this.seats[0];
      const tile = lane && this.tiles.at(window, lane.uid);
      const outcome = tile ? tile.outcomes[window % TILE] : ABSENT;
      const colour = outcome === "M" ? palette.merged : outcome === "v" ? palette.void : palette.waiting;
      const at = x(column);
      if (schedule && 40 <= width) {
        this.paintPhases(context, at, window, colour);
      } else {
        context.fillStyle = colour;
        context.fillRect(at, HEAD - 11, width - (width < 6 ? 0 : 1), 6);
      }
      if (window % every === 0) {
        context.fillStyle = palette.dim;
        context.fillText(String(window), at, 14);
      }
    }
    context.restore();
    context.fillStyle = palette.line;
    context.fillRect(0, HEAD - 1, wide, 1);
  }

  paintPhases(context, at, window, colour) {
    const { palette, width, schedule } = this;
    const ends = [...schedule.deadlines.map((deadline) => deadline + 1), schedule.blocks];
    let from = 0;
    ends.forEach((end, phase) => {
      const [left, right] = [at + (from / schedule.blocks) * width, at + (end / schedule.blocks) * width];
      context.globalAlpha = phase % 2 ? 0.55 : 1;
      context.fillStyle = colour;
      context.fillRect(left, HEAD - 11, right - left - 1, 6);
      context.globalAlpha = 1;
      if (130 <= width && phase === 0) {
        context.fillStyle = palette.dim;
        context.fillText(PHASES[phase], left + 42, 14);
      }
      from = end;
    });
    if (window === schedule.window && schedule.offset !== null) {
      context.fillStyle = palette.accent;
      context.fillRect(at + (schedule.offset / schedule.blocks) * width - 1, HEAD - 15, 2, 13);
    }
  }

  paintNames(context, { firstLane, lastLane, y, high }) {
    const { palette, gutter } = this;
    context.fillStyle = palette.card;
    context.fillRect(0, HEAD, gutter - 1, high);
    context.fillStyle = palette.line;
    context.fillRect(gutter - 1, 0, 1, high);
    context.save();
    context.beginPath();
    context.rect(0, HEAD, gutter - 8, high);
    context.clip();
    context.font = "12px system-ui, sans-serif";
    for (let lane = firstLane; lane <= lastLane; lane += 1) {
      const seat = this.seats[lane];
      context.fillStyle = seat.role === "validator" ? palette.voted : palette.text;
      context.fillText(flat(seat.name).slice(0, 40), 8, y(lane) + 13);
    }
    context.restore();
    context.fillStyle = palette.card;
    context.fillRect(0, 0, gutter - 1, HEAD - 1);
    context.fillStyle = palette.dim;
    context.font = "11px system-ui, sans-serif";
    context.fillText("window", 8, 14);
  }
}
