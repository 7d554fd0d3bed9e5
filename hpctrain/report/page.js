/* Values under the mouse, and zooming by dragging over a chart; a double click, Escape or the button shows all again. The page says the
   same without: nothing here adds anything that is not drawn. */
(() => {
  "use strict";
  const NS = "http://www.w3.org/2000/svg";
  const charts = [];

  const nice = (low, high, most) => {
    const raw = (high - low) / (most - 1);
    if (!(raw > 0)) return [low];
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= raw * (1 - 1e-9)) || 10 * power;
    const found = [];
    for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9 && found.length < most; at += 1) found.push(at * step);
    return found;
  };
  const short = (value) => {
    if (value === null || value === undefined) return "-";
    const size = Math.abs(value);
    if (size >= 10000) return Math.round(value).toLocaleString("en-US");
    return String(Number(value.toPrecision(size !== 0 && size < 1e-3 ? 3 : 5)));
  };
  const nearest = (xs, x) => {
    let low = 0;
    let high = xs.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (xs[middle] < x) low = middle; else high = middle;
    }
    return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
  };

  class Chart {
    constructor(figure) {
      this.figure = figure;
      this.data = JSON.parse(figure.querySelector("script").textContent);
      this.svg = figure.querySelector(".chart");
      this.plot = figure.querySelector(".plot");
      this.area = figure.querySelector(".area");
      this.hit = figure.querySelector(".hit"); /* the box of an inner <svg> is that of what is drawn in it */
      this.ticks = figure.querySelector(".xticks");
      this.width = this.plot.viewBox.baseVal.width;
      this.height = this.plot.viewBox.baseVal.height;
      this.low = this.data.lo;
      this.high = this.data.hi;
      this.window = [0, 1];
      this.allTicks = this.ticks.innerHTML;
      this.tip = document.createElement("div");
      this.tip.className = "tip";
      this.tip.hidden = true;
      this.reset = document.createElement("button");
      this.reset.className = "reset";
      this.reset.type = "button";
      this.reset.textContent = "show all";
      this.reset.hidden = true;
      figure.append(this.tip, this.reset);
      figure.classList.add("live");
      this.cross = this.mark("line", "cross");
      this.picked = this.mark("rect", "picked");
      this.picked.setAttribute("y", "0");
      this.picked.setAttribute("height", String(this.height));
      this.listen();
    }

    mark(name, kind) {
      const made = document.createElementNS(NS, name);
      made.setAttribute("class", kind);
      made.setAttribute("visibility", "hidden");
      this.plot.append(made);
      return made;
    }

    listen() {
      let begun = null;
      this.area.addEventListener("pointermove", (event) => {
        const part = this.part(event);
        this.show(part, event);
        if (begun !== null) this.pick(begun, part);
      });
      this.area.addEventListener("pointerleave", () => { if (begun === null) this.hide(); });
      this.area.addEventListener("pointerdown", (event) => {
        if (event.pointerType === "touch" || event.button !== 0) return;
        begun = this.part(event);
        this.area.setPointerCapture(event.pointerId);
        event.preventDefault();
      });
      this.area.addEventListener("pointerup", (event) => {
        if (begun === null) return;
        const ended = this.part(event);
        this.picked.setAttribute("visibility", "hidden");
        if (Math.abs(ended - begun) * this.hit.getBoundingClientRect().width / (this.window[1] - this.window[0]) > 8) {
          const [low, high] = [begun, ended].sort((a, b) => a - b).map((part) => this.value(part));
          charts.filter((each) => each.data.n === this.data.n && each.log === this.log).forEach((each) => each.zoom(low, high));
        }
        begun = null;
      });
      const all = () => charts.filter((each) => each.data.n === this.data.n).forEach((each) => each.whole());
      this.area.addEventListener("dblclick", all);
      this.reset.addEventListener("click", all);
    }

    get log() { return Boolean(this.data.log); }

    /* Parts, 0 to 1, are of the whole axis, whatever is shown of it. */
    part(event) {
      const box = this.hit.getBoundingClientRect();
      const shown = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
      return this.window[0] + shown * (this.window[1] - this.window[0]);
    }

    value(part) {
      if (this.log) return 10 ** (Math.log10(this.low) + part * (Math.log10(this.high) - Math.log10(this.low)));
      return this.low + part * (this.high - this.low);
    }

    place(value) {
      const part = this.log ? Math.log10(value / this.low) / Math.log10(this.high / this.low) : (value - this.low) / (this.high - this.low);
      return Math.min(1, Math.max(0, part));
    }

    zoom(low, high) {
      const [first, last] = [this.place(low), this.place(high)];
      if (last - first < 1e-6) return;
      this.window = [first, last];
      this.plot.setAttribute("viewBox", `${first * this.width} 0 ${(last - first) * this.width} ${this.height}`);
      this.reset.hidden = false;
      this.drawTicks();
    }

    whole() {
      this.window = [0, 1];
      this.plot.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
      this.ticks.innerHTML = this.allTicks;
      this.reset.hidden = true;
    }

    drawTicks() {
      const [low, high] = this.window.map((part) => this.value(part));
      const left = this.plot.x.baseVal.value;
      const bottom = this.plot.y.baseVal.value + this.plot.height.baseVal.value;
      this.ticks.replaceChildren();
      nice(low, high, 6).forEach((tick) => {
        const part = (this.place(tick) - this.window[0]) / (this.window[1] - this.window[0]);
        const text = document.createElementNS(NS, "text");
        text.setAttribute("class", "tick");
        text.setAttribute("text-anchor", "middle");
        text.setAttribute("x", String(left + part * this.width));
        text.setAttribute("y", String(bottom + 16));
        text.textContent = short(tick);
        this.ticks.append(text);
      });
    }

    pick(first, last) {
      const [low, high] = [first, last].sort((a, b) => a - b);
      this.picked.setAttribute("x", String(low * this.width));
      this.picked.setAttribute("width", String((high - low) * this.width));
      this.picked.setAttribute("visibility", "visible");
    }

    show(part, event) {
      const x = this.value(part);
      const lines = this.values(x);
      this.tip.textContent = lines.join("\n");
      this.tip.hidden = false;
      const box = this.figure.getBoundingClientRect();
      const left = event.clientX - box.left + 14;
      this.tip.style.left = `${left + this.tip.offsetWidth > box.width ? Math.max(0, left - this.tip.offsetWidth - 28) : left}px`;
      this.tip.style.top = `${Math.max(0, event.clientY - box.top - this.tip.offsetHeight - 10)}px`;
      const at = String(part * this.width);
      Object.entries({ x1: at, x2: at, y1: "0", y2: String(this.height), visibility: "visible" })
        .forEach(([name, text]) => this.cross.setAttribute(name, text));
    }

    head(x) {
      return `${this.data.n} ${short(this.data.n === "step" ? Math.round(x) : x)}`;
    }

    values(x) {
      const unit = this.data.u ? ` ${this.data.u}` : "";
      let rows = this.data.s.map((series) => {
        const xs = this.data.xs[series.x];
        const at = nearest(xs, x);
        return { name: series.n, value: series.y[at], x: xs[at] };
      }).filter((row) => row.value !== null && row.value !== undefined);
      const more = rows.length - 8;
      const sign = this.data.min ? 1 : -1;
      if (more > 0) rows = rows.sort((a, b) => sign * (a.value - b.value)).slice(0, 8);
      const lines = rows.map((row) => `${row.name}: ${short(row.value)}${unit}`);
      return [this.head(rows.length === 1 ? rows[0].x : x), ...lines, ...(more > 0 ? [`and ${more} ${this.data.min ? "higher" : "lower"} ones`] : [])];
    }

    hide() {
      this.tip.hidden = true;
      this.cross.setAttribute("visibility", "hidden");
    }
  }

  document.querySelectorAll("figure[data-chart]").forEach((figure) => charts.push(new Chart(figure)));
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") charts.forEach((each) => each.whole()); });
})();
