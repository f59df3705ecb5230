package model

import "fmt"

// An imageState is the state of one image: present or not.
type imageState struct {
	there bool
	done  uint64
}

// An image follows one image. Its ID is determined by its content: it never changes.
type image struct {
	name string
}

func (m *image) clear(s imageState, q *pending) imageState {
	s.done &^= q.bit()
	return s
}

func (m *image) event(s imageState, _ Kind) (imageState, bool) { return s, true }

func (m *image) text(s imageState) string {
	if s.there {
		return "there"
	}
	return "not there"
}

func (m *image) where(s imageState, _ Call) string { return m.text(s) }

func (m *image) force(s imageState, q *pending, yield func(imageState)) {
	switch a := q.answer; {
	case a.Code != OK:
	case q.call.Verb == Pull:
		s.there = true
	case q.call.Verb == RemoveImage:
		s.there = false
	default:
		s.there = a.ID != "" || len(a.Items) > 0
	}
	yield(s)
}

func (m *image) moves(s imageState, under []*pending, yield func(imageState)) {
	for _, q := range under {
		to := s
		switch q.call.Verb {
		case Pull:
			if s.done&q.bit() == 0 && (q.is(OK) || q.unsettled()) {
				to.there = true
				to.done |= q.bit()
				yield(to)
			}
		case RemoveImage:
			if !s.there {
				to.done |= q.bit()
				yield(to)
			} else if s.done&q.bit() == 0 {
				to.there = false
				yield(to)
			}
		case ListImages:
			if !q.taken && s.there == (len(q.answer.Items) > 0) {
				to.done |= q.bit()
				yield(to)
			}
		case ImageStatus:
			if !q.taken && s.there == (q.answer != nil && q.answer.ID != "") {
				to.done |= q.bit()
				yield(to)
			}
		}
	}
}

func (m *image) end(s imageState, q *pending) (imageState, bool) {
	return s, q.unsettled() || q.is(OK) && s.done&q.bit() != 0
}

// images follows all images of a history.
type images struct {
	byName map[string]*follower[imageState]
	names  []string
	ids    map[string]string  // name → ID
	using  map[int]*creation  // CreateContainer, by the call's number
	under  map[int][]*pending // by the list's number: what it shows of each image
	lists  map[int][]*follower[imageState]
}

// A creation is a CreateContainer and the possible states of its image meanwhile.
type creation struct {
	image       string
	there, away bool
	over        bool
}

func newImages(h History) (*images, error) {
	is := &images{
		byName: make(map[string]*follower[imageState]), ids: make(map[string]string), using: make(map[int]*creation),
		under: make(map[int][]*pending), lists: make(map[int][]*follower[imageState]),
	}
	add := func(name string) {
		if name == "" || is.byName[name] != nil {
			return
		}
		is.byName[name] = &follower[imageState]{o: &image{name: name}, name: "image " + name, states: map[imageState]struct{}{{}: {}}}
		is.names = append(is.names, name)
	}
	for _, e := range h {
		add(e.Call.Image)
		for _, it := range e.Answer.Items {
			add(it.Image)
		}
	}
	return is, nil
}

// during returns what a CreateContainer may have found. The image "" always exists.
func (is *images) during(n int, name string) creation {
	if c := is.using[n]; c != nil {
		return *c
	}
	return creation{there: true}
}

// look records what the creations under way may find now.
func (is *images) look() {
	for _, c := range is.using {
		if c.over {
			continue
		}
		for s := range is.byName[c.image].states {
			c.there, c.away = c.there || s.there, c.away || !s.there
		}
	}
}

func (is *images) begin(p *pending, _ int) error {
	defer is.look()
	name := p.call.Image
	switch p.call.Verb {
	case Create:
		if name != "" {
			is.using[p.n] = &creation{image: name}
		}
	case Pull, RemoveImage, ImageStatus:
		return is.byName[name].begin(p)
	case ListImages:
		if p.answer == nil || p.answer.Code.Unsettled() {
			return nil
		}
		for _, name := range is.names {
			if p.call.Image != "" && p.call.Image != name {
				continue
			}
			a := Answer{Code: OK}
			for _, it := range p.answer.Items {
				if it.Image == name {
					a.Items = []Item{it}
				}
			}
			q := p.part(p.call, &a)
			is.under[p.n] = append(is.under[p.n], q)
			is.lists[p.n] = append(is.lists[p.n], is.byName[name])
			if err := is.byName[name].begin(q); err != nil {
				return err
			}
		}
	}
	return nil
}

func (is *images) end(p *pending, _ int) error {
	defer is.look()
	for _, it := range p.answer.Items {
		if err := is.sameID(it.Image, it.ID, p.taken); err != nil {
			return err
		}
	}
	switch p.call.Verb {
	case Create:
		// Unsettled ones may continue; what they find later is not followed.
		if c := is.using[p.n]; c != nil {
			c.over = true
		}
	case Pull, ImageStatus:
		if err := is.sameID(p.call.Image, p.answer.ID, p.taken); err != nil {
			return err
		}
		return is.byName[p.call.Image].end(p)
	case RemoveImage:
		return is.byName[p.call.Image].end(p)
	case ListImages:
		for i, q := range is.under[p.n] {
			if err := is.lists[p.n][i].end(q); err != nil {
				return err
			}
		}
	}
	return nil
}

// sameID returns an error if an image has another ID than before.
func (is *images) sameID(name, id string, taken bool) error {
	if name == "" || id == "" {
		return nil
	}
	if before := is.ids[name]; before != "" && before != id && !taken {
		return fmt.Errorf("image %s has the ID %s, and had %s before", name, id, before)
	}
	is.ids[name] = id
	return nil
}

func (is *images) event(e Event, taken bool) error {
	if e.Kind == Listening || e.Kind == Reported {
		return nil
	}
	defer is.look()
	for _, name := range is.names {
		if err := is.byName[name].event(e.Kind, taken); err != nil {
			return err
		}
	}
	return nil
}
