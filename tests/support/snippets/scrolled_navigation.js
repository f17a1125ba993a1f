(x, y) => {
  const box = document.getElementById('views');
  for (const name of ['scrollLeft', 'scrollTop'])
    Object.defineProperty(box, name, {configurable: true, writable: true, value: 0});
  box.getBoundingClientRect = () => new DOMRect(0, 100, 200, 300);
  T.views.bringIntoNavigation({getBoundingClientRect: () => new DOMRect(x, y, 50, 20)});
  const told = [box.scrollLeft, box.scrollTop];
  for (const name of ['scrollLeft', 'scrollTop', 'getBoundingClientRect']) delete box[name];
  return told;
}
