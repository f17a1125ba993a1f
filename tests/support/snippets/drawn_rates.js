(forward_flop, backward_flop) => {
  const box = T.dom.el('div');
  T.flops.drawRates(box, {counter: 'c', forward_flop, backward_flop}, 0.004);
  return [...box.querySelectorAll('.figure')].map((one) => one.textContent).join(', ');
}
