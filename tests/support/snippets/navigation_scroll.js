(top) => {
  const box = T.dom.byId('views');
  const around = {left: 0, right: 100, top: 10, bottom: 50, height: 40};
  const own = {left: 0, right: 100, top, bottom: top + 20, height: 20};
  box.getBoundingClientRect = () => around;
  Object.defineProperty(box, 'scrollTop', {value: 0, writable: true, configurable: true});
  T.views.bringIntoNavigation({getBoundingClientRect: () => own});
  const { scrollTop } = box;
  delete box.scrollTop;
  delete box.getBoundingClientRect;
  return scrollTop;
}
