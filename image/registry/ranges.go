package registry

import (
	"context"
	"io"
	"math"
	"reflect"

	"github.com/crisp-cri/crisp/internal/fault"
	"go.podman.io/image/v5/types"
)

// toEnd is the length that means everything to the end.
const toEnd = math.MaxUint64

// openRange opens a part of a blob; offset and length are in bytes. If a registry does not
// support ranges, the bytes before the part are read and discarded. Cancel ctx before closing
// the part, or closing reads the rest.
//
// The library has a method for this (GetBlobAt of its source of docker images), but its
// parameter has a type that only the library can name: struct{Offset, Length uint64}.
func openRange(ctx context.Context, src types.ImageSource, info types.BlobInfo, offset, length uint64) (io.ReadCloser, error) {
	method := reflect.ValueOf(src).MethodByName("GetBlobAt")
	if !method.IsValid() || len(info.URLs) > 0 {
		return nil, fault.Unavailable.Errorf("blob %s: parts of it cannot be fetched", info.Digest)
	}
	chunks := reflect.MakeSlice(method.Type().In(2), 1, 1)
	chunks.Index(0).FieldByName("Offset").SetUint(offset)
	chunks.Index(0).FieldByName("Length").SetUint(length)
	got := method.Call([]reflect.Value{reflect.ValueOf(ctx), reflect.ValueOf(info), chunks})
	if err, _ := got[2].Interface().(error); err != nil {
		return nil, err
	}
	parts, errs := got[0].Interface().(chan io.ReadCloser), got[1].Interface().(chan error)
	for parts != nil || errs != nil {
		select {
		case part, ok := <-parts:
			if ok {
				return part, nil
			}
			parts = nil
		case err, ok := <-errs:
			if ok {
				return nil, err
			}
			errs = nil
		}
	}
	return nil, fault.Unavailable.Errorf("blob %s: no data from byte %d on", info.Digest, offset)
}
