// An unmodified paho.golang against a realm: main PORT.
//
// Says in lines of one form what has become of each test.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/eclipse/paho.golang/paho"
)

const (
	patience = 20 * time.Second
	jobs     = 20
)

// known is a client that is let in, and what it gets.
type known struct {
	*paho.Client
	line      net.Conn
	got       chan *paho.Publish
	isPresent bool
}

func must[T any](found T, err error) T {
	if err != nil {
		panic(err)
	}
	return found
}

func equal[T any](found, expected T) {
	if got, wanted := fmt.Sprint(found), fmt.Sprint(expected); got != wanted {
		panic(fmt.Errorf("got %s instead of %s", got, wanted))
	}
}

func inTime() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	context.AfterFunc(ctx, cancel)
	return ctx
}

// connect lets a client in, what it gets beside others into one channel if that is given.
func connect(id string, own *paho.Connect, got chan *paho.Publish) *known {
	if got == nil {
		got = make(chan *paho.Publish, 2*jobs)
	}
	line := must(net.Dial("tcp", "127.0.0.1:"+os.Args[1]))
	client := paho.NewClient(paho.ClientConfig{
		Conn: line,
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){
			func(received paho.PublishReceived) (bool, error) {
				got <- received.Packet
				return true, nil
			},
		},
	})
	own.ClientID, own.KeepAlive = "pahogo-"+id, 60
	answer := must(client.Connect(inTime(), own))
	return &known{client, line, got, answer.SessionPresent}
}

func clean(id string) *known {
	return connect(id, &paho.Connect{CleanStart: true}, nil)
}

func lasting(id string) *known {
	expiry := uint32(600)
	properties := &paho.ConnectProperties{SessionExpiryInterval: &expiry}
	return connect(id, &paho.Connect{Properties: properties}, nil)
}

func (one *known) subscribe(filter string, qos byte) {
	options := []paho.SubscribeOptions{{Topic: filter, QoS: qos}}
	must(one.Subscribe(inTime(), &paho.Subscribe{Subscriptions: options}))
}

// publish returns once the realm has answered, as far as it does.
func (one *known) publish(topic, text string, qos byte, more *paho.Publish) {
	if more == nil {
		more = &paho.Publish{}
	}
	more.Topic, more.Payload, more.QoS = topic, []byte(text), qos
	must(one.Publish(inTime(), more))
}

func (one *known) take(count int) []*paho.Publish {
	late := time.After(patience)
	var found []*paho.Publish
	for len(found) < count {
		select {
		case each := <-one.got:
			found = append(found, each)
		case <-late:
			panic(fmt.Errorf("got %d of %d", len(found), count))
		}
	}
	return found
}

func (one *known) leave() {
	if err := one.Disconnect(&paho.Disconnect{}); err != nil {
		panic(err)
	}
	<-one.Done()
}

func texts(all []*paho.Publish) (found []string) {
	for _, each := range all {
		found = append(found, string(each.Payload))
	}
	return found
}

func numbers() (found []string) {
	for number := range jobs {
		found = append(found, strconv.Itoa(number))
	}
	return found
}

func eachQoS() {
	one := clean("qos")
	one.subscribe("pahogo/qos", 2)
	for qos := range byte(3) {
		one.publish("pahogo/qos", "hello", qos, nil)
		got := one.take(1)[0]
		equal([]any{string(got.Payload), got.QoS}, []any{"hello", qos})
	}
	one.leave()
}

func retained() {
	device := clean("device")
	device.publish("pahogo/state", "off", 1, &paho.Publish{Retain: true})
	device.publish("pahogo/state", "on", 1, &paho.Publish{Retain: true})
	device.leave()
	late := clean("late")
	late.subscribe("pahogo/state", 1)
	got := late.take(1)[0]
	equal([]any{string(got.Payload), got.Retain}, []any{"on", true})
	late.leave()
}

func session() {
	sleeper := lasting("sleeper")
	equal(sleeper.isPresent, false)
	sleeper.subscribe("pahogo/jobs", 2)
	sleeper.leave()
	boss := clean("boss")
	for _, each := range numbers() {
		boss.publish("pahogo/jobs", each, 2, nil)
	}
	boss.leave()
	again := lasting("sleeper")
	equal(again.isPresent, true)
	equal(texts(again.take(jobs)), numbers())
	again.leave()
}

func will() {
	watcher := clean("watcher")
	watcher.subscribe("pahogo/gone", 1)
	last := &paho.WillMessage{Topic: "pahogo/gone", Payload: []byte("bye"), QoS: 1}
	mortal := connect("mortal", &paho.Connect{CleanStart: true, WillMessage: last}, nil)
	mortal.line.Close() // without a goodbye
	equal(texts(watcher.take(1)), []string{"bye"})
	watcher.leave()
}

func shared() {
	all := make(chan *paho.Publish, jobs)
	members := []*known{}
	for _, id := range []string{"member-1", "member-2"} {
		members = append(members, connect(id, &paho.Connect{CleanStart: true}, all))
		members[len(members)-1].subscribe("$share/crew/pahogo/work", 1)
	}
	boss := clean("boss")
	for _, each := range numbers() {
		boss.publish("pahogo/work", each, 1, nil)
	}
	got, expected := texts(members[0].take(jobs)), numbers()
	slices.Sort(got)
	slices.Sort(expected)
	equal(got, expected)
	for _, each := range append(members, boss) {
		each.leave()
	}
}

func request() {
	server, asker := clean("server"), clean("asker")
	server.subscribe("pahogo/double", 1)
	asker.subscribe("pahogo/answers", 1)
	own := &paho.PublishProperties{
		ResponseTopic:   "pahogo/answers",
		CorrelationData: []byte{0, 255},
		ContentType:     "text/plain",
		User:            paho.UserProperties{{Key: "unit", Value: "C"}, {Key: "unit", Value: "K"}},
	}
	asker.publish("pahogo/double", "21", 1, &paho.Publish{Properties: own})
	asked := server.take(1)[0].Properties
	equal(asked.User, own.User)
	equal(asked.ContentType, own.ContentType)
	back := &paho.PublishProperties{CorrelationData: asked.CorrelationData}
	server.publish(asked.ResponseTopic, "42", 1, &paho.Publish{Properties: back})
	answer := asker.take(1)[0]
	equal(string(answer.Payload), "42")
	if !bytes.Equal(answer.Properties.CorrelationData, []byte{0, 255}) {
		panic(errors.New("other correlation data"))
	}
	server.leave()
	asker.leave()
}

// passes says why a test fails, if it does.
func passes(name string, test func()) (isPassed bool) {
	defer func() {
		if why := recover(); why != nil {
			text := strings.ReplaceAll(fmt.Sprint(why), "\n", " ")
			fmt.Printf("FAILED %s: %s\n", name, text)
		}
	}()
	test()
	return true
}

func main() {
	failed := 0
	tests := []struct {
		name string
		test func()
	}{
		{"eachQoS", eachQoS},
		{"retained", retained},
		{"session", session},
		{"will", will},
		{"shared", shared},
		{"request", request},
	}
	for _, each := range tests {
		if !passes(each.name, each.test) {
			failed++
		}
	}
	fmt.Printf("RAN %d FAILED %d IGNORED 0\n", len(tests), failed)
}
