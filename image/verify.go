package image

import (
	"context"
	"path/filepath"
	"time"
)

// suspectFor is how long before the last layer was committed a layer is suspect
// after the power was cut. syncfs(2) had returned before any of them got its
// name; what is feared is a disk that said so too early.
const suspectFor = 10 * time.Minute

// verifyLatest holds the layers committed last against the metadata that they had
// then, drops those that differ, and returns the rest. Older ones are believed:
// reading them all would keep a node from coming up.
func (s *Store) verifyLatest(ctx context.Context, found []*layer) ([]*layer, error) {
	var last time.Time
	for _, l := range found {
		if l.record.Unpacked.After(last) {
			last = l.record.Unpacked
		}
	}
	var good []*layer
	for _, l := range found {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if last.Sub(l.record.Unpacked) > suspectFor {
			good = append(good, l)
			continue
		}
		got, err := measure(ctx, filepath.Join(s.layers.path(l.diffID), "fs"))
		if err == nil && got.Digest == l.record.Sum.Digest {
			good = append(good, l)
			continue
		}
		s.log.Warn("layer damaged by the power cut was dropped", "layer", l.diffID, "err", err)
		s.discardLayer(l.diffID.Encoded())
	}
	return good, nil
}
