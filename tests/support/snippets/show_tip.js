(clientX, clientY) => {
  T.dom.showTip({clientX, clientY}, 'title', [['a', 'b'], null]);
  const {tip} = T.dom, {left, top, right, bottom} = tip.getBoundingClientRect();
  const told = [tip.textContent, left, top, innerWidth - right, clientY - bottom];
  T.dom.hideTip();
  return [...told, tip.hidden];
}
