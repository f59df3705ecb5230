package layer

import "time"

// keepFor is how long the layers of a failed pull are kept: the kubelet retries after at most
// five minutes.
const keepFor = 10 * time.Minute

// Keep takes over layers that are retained and ready, for the next try of a pull that failed. They
// are in staging, and in no image.
func (ls *Store) Keep(layers []*Layer) error {
	var spare []*Layer
	ls.keeping.Lock()
	for _, l := range layers {
		if timer, ok := ls.kept[l]; ok {
			timer.Reset(keepFor)
			spare = append(spare, l)
			continue
		}
		ls.kept[l] = time.AfterFunc(keepFor, func() {
			if err := ls.dropKept(l); err != nil {
				ls.log.Error("layer of a failed pull was not removed", "layer", l.DiffID, "err", err)
			}
		})
	}
	ls.keeping.Unlock()
	return ls.ReleaseAll(spare)
}

func (ls *Store) dropKept(l *Layer) error {
	ls.keeping.Lock()
	timer, ok := ls.kept[l]
	delete(ls.kept, l)
	ls.keeping.Unlock()
	if !ok {
		return nil
	}
	timer.Stop()
	return ls.release(l)
}

// DropKept lets go of the layers that are kept for a next try, because their space is needed or
// the store closes.
func (ls *Store) DropKept() error {
	ls.keeping.Lock()
	var all []*Layer
	for l, timer := range ls.kept {
		timer.Stop()
		all = append(all, l)
	}
	clear(ls.kept)
	ls.keeping.Unlock()
	return ls.ReleaseAll(all)
}
