(() => {
  const slices = [...document.querySelectorAll('#module-picture g.slice')];
  const at = (name) => slices.find((one) => one.textContent.startsWith(name));
  const box = (name) => at(name).querySelector('path').getBBox();
  const told = [box('the step').width, box('Digits').width,
    box('the step').y < box('Digits').y];
  at('features').dispatchEvent(new MouseEvent('click', {bubbles: true}));
  return told;
})()
