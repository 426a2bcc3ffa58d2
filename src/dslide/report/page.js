"use strict";
// Shows the values of the lines at the pointer, below the chart.
for (const chart of document.querySelectorAll("svg.chart")) {
  const [left, right, first, last] = chart.dataset.x.split(" ").map(Number);
  const [bottom, top, low, high] = chart.dataset.y.split(" ").map(Number);
  const [xUnit, yUnit] = chart.dataset.units.split("|");
  const readout = chart.parentNode.querySelector("output");
  const cursor = chart.querySelector(".cursor");
  const text = (value) => Number(value.toPrecision(4)).toLocaleString("en-GB", { maximumSignificantDigits: 4 });

  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * chart.viewBox.baseVal.width;
    if (at < left || at > right) return clear();
    cursor.setAttribute("x1", at);
    cursor.setAttribute("x2", at);
    const x = first + ((at - left) / (right - left)) * (last - first);
    readout.replaceChildren(part(`${text(x)} ${xUnit}:`));
    for (const line of chart.querySelectorAll("polyline.line")) {
      if (getComputedStyle(line).display === "none") continue;
      const y = near(line.points, at);
      if (y === null) continue;
      const value = part(`${line.dataset.run} ${text(low + ((y - bottom) / (top - bottom)) * (high - low))} ${yUnit}`);
      value.className = `letter ${line.getAttribute("class").split(" ")[1]}`;
      readout.append(value);
    }
  });
  chart.addEventListener("pointerleave", clear);

  function clear() {
    cursor.setAttribute("x1", -9);
    cursor.setAttribute("x2", -9);
    readout.replaceChildren();
  }

  function part(words) {
    const span = document.createElement("span");
    span.textContent = words;
    return span;
  }

  // The y position of the point nearest to a position on x; null if there is none within 40 pixels.
  function near(points, at) {
    let best = null;
    for (const point of points) {
      if (best === null || Math.abs(point.x - at) < Math.abs(best.x - at)) best = point;
    }
    return best !== null && Math.abs(best.x - at) < 40 ? best.y : null;
  }
}
