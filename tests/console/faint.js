// Texts whose contrast with what is behind them is below 4.5, with their contrast.
() => {
  const numbers = (text) => text.match(/[\d.]+/g).map(Number);
  const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  const light = ([red, green, blue]) =>
    0.2126 * linear(red / 255) + 0.7152 * linear(green / 255) + 0.0722 * linear(blue / 255);
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const colour = numbers(getComputedStyle(node).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  const root = document.getElementById("console");
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    const node = text.parentElement, style = getComputedStyle(node);
    if (!text.data.trim() || !node.getClientRects().length) continue;
    if (node.closest(":disabled, option")) continue;
    const front = light(numbers(node.closest("svg") ? style.fill : style.color));
    const back = light(ground(node));
    const contrast = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
    if (contrast < 4.5) found.push(`${text.data.trim().slice(0, 30)}: ${contrast.toFixed(2)}`);
  }
  return found;
}
