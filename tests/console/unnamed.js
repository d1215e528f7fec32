// What can be worked with and has no name that is read aloud.
() => [...document.querySelectorAll("button, a[href], input, select, textarea, [role=tree]")]
  .filter((node) => node.getClientRects().length)
  .filter((node) => !node.getAttribute("aria-label") && !node.textContent.trim())
  .filter((node) => !node.labels?.length && !node.title)
  .map((node) => node.outerHTML.slice(0, 80))
