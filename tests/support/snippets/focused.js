(() => {
  const one = document.activeElement, place = one.getBoundingClientRect(), style =
    getComputedStyle(one), wrong = [];
  if (one === document.body) return null;
  if (style.outlineStyle === 'none' || style.outlineWidth === '0px') wrong.push('no outline');
  let opacity = 1;
  for (let box = one; box; box = box.parentElement) opacity *= getComputedStyle(box).opacity;
  if (opacity < 0.9 || place.width < 1 || place.height < 1) wrong.push('not to be seen');
  const inside = (from, to, most) => Math.min(Math.max(from + Math.min(to, 200) / 2, 0), most - 1);
  const top = document.elementFromPoint(inside(place.left, place.width, innerWidth),
    inside(place.top, Math.min(place.height, 40), innerHeight));
  if (!top || !(one.contains(top) || top.contains(one))) wrong.push('covered');
  return [one.tagName, NAME, wrong];
})()
