"use strict";
// Sorting, switching and curves. All text and tables are in the page without this script.

document.documentElement.classList.add("js");
for (const controls of document.querySelectorAll(".controls")) controls.hidden = false;

const SVG = "http://www.w3.org/2000/svg";

function svgElement(name, attributes, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function htmlElement(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// ── Tables: a click on a column header sorts by it.
const collator = new Intl.Collator("en", { numeric: true });

function valueOf(row, column) {
  const cell = row.cells[column];
  const text = cell.dataset.v ?? cell.textContent.trim();
  const number = Number(text);
  return text === "" || Number.isNaN(number) ? text : number;
}

function compare(one, two) {
  if (typeof one === "number" && typeof two === "number") return one - two;
  return collator.compare(one, two);
}

function sort(table, column, header) {
  const before = header.getAttribute("aria-sort");
  const numbers = typeof valueOf(table.querySelector("tbody tr:not(.group)"), column) === "number";
  // Numbers start with the best, which may be the lowest; words start with the first.
  const first = numbers && !("low" in header.dataset) ? "descending" : "ascending";
  const order = before ? (before === "descending" ? "ascending" : "descending") : first;
  for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", order);
  const sign = order === "ascending" ? 1 : -1;
  for (const body of table.tBodies) {
    body.querySelectorAll(".detail").forEach((row) => close(row.previousElementSibling));
    // The name of a group stays on top of it.
    const rows = [...body.rows].filter((row) => !row.matches(".group")).map((row) => [valueOf(row, column), row]);
    rows.sort(([one], [two]) => {
      // Missing values come last in either order.
      if (one === "" || two === "") return (one === "") - (two === "");
      return sign * compare(one, two);
    });
    body.append(...rows.map(([, row]) => row));
  }
}

for (const table of document.querySelectorAll("table.sortable")) {
  [...table.tHead.rows[0].cells].forEach((header, column) => {
    if (!header.scope) return;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    header.append(button);
    button.addEventListener("click", () => sort(table, column, header));
  });
}

// ── Tables of results: mean and worst stay in place; on a phone, a tap shows the other columns.
function close(row) {
  if (row.nextElementSibling?.matches(".detail")) row.nextElementSibling.remove();
  row.querySelector(".expand")?.setAttribute("aria-expanded", "false");
}

function expand(table, row) {
  const heads = [...table.tHead.rows[0].cells];
  const list = htmlElement("dl", {});
  [...row.cells].forEach((cell, column) => {
    if (!cell.matches(".more")) return;
    list.append(htmlElement("dt", {}, heads[column].textContent), htmlElement("dd", {}, cell.textContent));
  });
  row.after(htmlElement("tr", { class: "detail" }, htmlElement("td", { colspan: 3 }, list)));
  row.querySelector(".expand").setAttribute("aria-expanded", "true");
}

for (const table of document.querySelectorAll("table.results")) {
  for (const row of table.querySelectorAll("tbody tr:not(.group)")) {
    const button = htmlElement("button", { type: "button", class: "expand", "aria-expanded": "false", "aria-label": "All columns" }, "⋯");
    row.cells[0].append(" ", button);
    button.addEventListener("click", () => {
      if (button.getAttribute("aria-expanded") === "true") close(row);
      else expand(table, row);
    });
  }
}

const wide = matchMedia("(min-width: 40.01rem)");
function pin(table) {
  const heads = [...table.tHead.rows[0].cells];
  const last = heads.findLastIndex((head) => head.matches(".key"));
  let left = 0;
  heads.slice(0, last + 1).forEach((head, column) => {
    for (const row of table.rows) {
      const cell = row.cells[column];
      if (!column || !cell || row.matches(".group, .detail")) continue;
      cell.classList.toggle("pinned", wide.matches);
      cell.style.left = wide.matches ? `${left}px` : "";
    }
    left += head.getBoundingClientRect().width;
  });
}
const pinAll = () => document.querySelectorAll("table.results").forEach((table) => table.checkVisibility() && pin(table));
addEventListener("resize", pinAll);

// ── Rules, filter and calibration.
for (const section of document.querySelectorAll(".dataset")) {
  const rules = [...section.querySelectorAll(".rule")];
  const radios = [...section.querySelectorAll(".switch input")];
  const show = () => {
    const chosen = radios.find((radio) => radio.checked)?.value ?? rules[0]?.dataset.rule;
    for (const rule of rules) rule.hidden = rule.dataset.rule !== chosen;
    pinAll();
  };
  for (const radio of radios) radio.addEventListener("change", show);
  show();

  const names = new Map();
  for (const row of section.querySelectorAll("table.results tr[data-m]")) names.set(row.dataset.m, row.cells[0].querySelector("bdi").textContent.toLowerCase());
  const filter = section.querySelector(".filter");
  const apply = () => {
    const words = filter.value.toLowerCase().split(",").map((word) => word.trim()).filter(Boolean);
    for (const [number, name] of names) {
      const own = `[data-m="${number}"]`;
      const hidden = words.length > 0 && !words.some((word) => name.includes(word));
      for (const each of [...section.querySelectorAll(own), ...document.querySelectorAll(`[data-of="${section.id}"]${own}`)]) {
        // SVG elements have no attribute `hidden`.
        if (each instanceof SVGElement) each.style.display = hidden ? "none" : "";
        else each.hidden = hidden;
      }
    }
    for (const body of section.querySelectorAll("table.results tbody")) {
      body.hidden = [...body.rows].every((row) => row.hidden || row.matches(".group"));
    }
    pinAll();
  };
  filter?.addEventListener("input", apply);
  // A reloaded page may remember what was typed.
  if (filter?.value) apply();

  const box = section.querySelector(".calibration");
  const calibrate = () => { section.classList.toggle("calibrated", box.checked); pinAll(); };
  box?.addEventListener("change", calibrate);
  if (box?.checked) calibrate();
}

// ── Curves: drawn for one method, trial and draw at a time.
const percent = (value) => `${value.toFixed(2)}%`;
const accuracy = (thousandths) => `${(thousandths / 10).toFixed(1)} %`;

class Curves {
  constructor(container) {
    this.container = container;
    this.data = JSON.parse(document.getElementById(container.dataset.curves).textContent);
    const controls = container.parentElement.querySelector(".curves-controls");
    const of = (key) => [...new Set(this.data.runs.map((run) => run[key]))].sort((a, b) => a - b);
    this.selects = {
      m: this.select(controls, "method", of("m").map((m) => [m, this.data.methods[m]])),
      i: this.select(controls, "trial", of("i").map((i) => [i, i])),
      d: this.select(controls, "draw", of("d").map((d) => [d, d ? d : "0 (defaults)"])),
    };
    this.show();
  }

  select(controls, label, options) {
    const select = htmlElement("select", {}, ...options.map(([value, text]) => htmlElement("option", { value }, String(text))));
    const shown = htmlElement("label", { class: "pick" }, label, select);
    shown.hidden = options.length < 2;
    controls.append(shown);
    select.addEventListener("change", () => this.show());
    return select;
  }

  show() {
    const wanted = Object.entries(this.selects).map(([key, select]) => [key, Number(select.value)]);
    const runs = this.data.runs.filter((run) => wanted.every(([key, value]) => run[key] === value));
    const panels = runs.map((run) => this.panel(run));
    this.container.replaceChildren(...(panels.length ? panels : [htmlElement("p", { class: "lede" }, "There is no such run.")]));
  }

  panel(run) {
    const target = this.data.targets[run.t];
    const svg = svgElement("svg", { class: "plot", role: "img" });
    const title = `${this.data.methods[run.m]}, ${target}: accuracy over ${this.data.steps[run.s].at(-1)} steps`;
    svg.append(svgElement("title", {}, title));
    this.axes(svg, run);
    const lines = [["sources", run.a, 0], ["validation", run.v, 1], [run.w ? "unseen" : "unseen*", run.u, 2]];
    const shown = lines.filter(([, values]) => values?.length);
    const inner = svgElement("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", width: "100%", height: "100%", overflow: "visible" });
    if (run.u?.length && run.n) inner.append(this.band(run));
    for (const [, values, kind] of shown) {
      const points = values.map((value, n) => `${this.x(run, this.data.steps[run.s][n]).toFixed(2)} ${this.y(value).toFixed(2)}`);
      inner.append(svgElement("path", { class: `curve k${kind}`, d: `M${points.join("L")}` }));
    }
    svg.append(inner);
    const notes = this.picks(svg, run);
    svg.append(svgElement("desc", {}, notes.map((line) => line.textContent).join(". ")));
    const list = htmlElement("ul", { class: "picks" }, ...notes, htmlElement("li", {}, htmlElement("code", {}, run.k)));
    return htmlElement("figure", { class: "panel" }, htmlElement("figcaption", {}, htmlElement("bdi", {}, target)), svg, list);
  }

  // Two standard errors of the unseen accuracy, from the number of samples.
  band(run) {
    const error = (value) => 2000 * Math.sqrt(((value / 1000) * (1 - value / 1000)) / run.n);
    const end = (sign) => run.u.map((value, n) => {
      const at = Math.min(1000, Math.max(0, value + sign * error(value)));
      return `${this.x(run, this.data.steps[run.s][n]).toFixed(2)} ${this.y(at).toFixed(2)}`;
    });
    return svgElement("path", { class: "band", d: `M${[...end(1), ...end(-1).reverse()].join("L")}Z` });
  }

  x(run, step) {
    return (100 * step) / this.data.steps[run.s].at(-1);
  }

  y(thousandths) {
    const { low, high } = this.data.y;
    return 100 - (100 * (thousandths / 10 - low)) / (high - low);
  }

  axes(svg, run) {
    for (const tick of this.data.y.ticks) {
      const y = percent(100 - tick.position);
      svg.append(svgElement("line", { class: "grid", x1: 0, x2: "100%", y1: y, y2: y }));
      svg.append(svgElement("text", { class: "tick", x: -7, y, dy: ".35em", "text-anchor": "end" }, tick.text));
    }
    const last = this.data.steps[run.s].at(-1);
    for (const [step, anchor] of [[0, "start"], [last / 2, "middle"], [last, "end"]]) {
      const attributes = { class: "tick", x: percent(this.x(run, step)), y: "100%", dy: "1.5em", "text-anchor": anchor };
      if (Number.isInteger(step)) svg.append(svgElement("text", attributes, anchor === "end" ? `${step} steps` : String(step)));
    }
  }

  picks(svg, run) {
    const notes = [];
    const own = this.data.picks.filter((pick) => pick.m === run.m && pick.t === run.t && pick.i === run.i);
    for (const pick of own) {
      const shape = `#s${pick.r}`;
      const rule = this.data.rules[pick.r];
      const mark = svgElement("svg", { width: 12, height: 12, "aria-hidden": "true" }, svgElement("use", { href: shape, x: "50%", y: "50%", class: "picked" }));
      if (pick.k !== run.k) {
        const other = this.data.runs.find((each) => each.k === pick.k);
        notes.push(htmlElement("li", {}, mark, `${rule} picked draw ${other ? other.d : "?"}`));
        continue;
      }
      const x = percent(this.x(run, pick.s));
      svg.append(svgElement("line", { class: "stem", x1: x, x2: x, y1: percent(this.y(pick.a)), y2: "100%" }));
      svg.append(svgElement("use", { href: shape, x, y: percent(this.y(pick.a)), class: "picked" }, svgElement("title", {}, `${rule}: step ${pick.s}, ${accuracy(pick.a)}`)));
      const behind = pick.g === null ? "" : `, ${(pick.g / 10).toFixed(1)} below the best`;
      notes.push(htmlElement("li", {}, mark, `${rule}: step ${pick.s}, ${accuracy(pick.a)}${behind}`));
    }
    const best = own.find((pick) => pick.b)?.b;
    if (best && best.k === run.k) {
      const at = { x: percent(this.x(run, best.s)), y: percent(this.y(best.a)) };
      svg.append(svgElement("use", { href: "#best", ...at, class: "top-mark" }, svgElement("title", {}, `best checkpoint: step ${best.s}, ${accuracy(best.a)}`)));
      const ring = svgElement("svg", { width: 14, height: 14, "aria-hidden": "true" }, svgElement("use", { href: "#best", x: "50%", y: "50%", class: "top-mark", transform: "scale(.9)" }));
      notes.push(htmlElement("li", {}, ring, `best checkpoint: step ${best.s}, ${accuracy(best.a)}`));
    }
    return notes;
  }
}

for (const container of document.querySelectorAll(".curves")) new Curves(container);

// ── Printing opens all collapsed parts.
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  for (const each of folded) each.open = true;
});
addEventListener("afterprint", () => {
  for (const each of folded) each.open = false;
});
