window.press = (box, label) => [...document.querySelectorAll(box + ' button')].find((one) =>
  one.textContent === label).click();
window.put = (selector, value, kind = 'change') => {
  const one = document.querySelector(selector);
  if (one.type === 'checkbox') one.checked = value; else one.value = value;
  one.dispatchEvent(new Event(kind));
};
window.areas = () => {
  const { labels, values, parents } = document.querySelector('#call-chart .plot').data[0];
  return labels.map((label, at) => [label, values[at], parents[at]]);
};
