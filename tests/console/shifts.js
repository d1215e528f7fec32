// From now on adds up in `window.shifts` how much of the page moves by itself.
() => {
  window.shifts = 0;
  const add = (list) => list.getEntries().forEach((entry) => { window.shifts += entry.value; });
  new PerformanceObserver(add).observe({ type: "layout-shift" });
}
