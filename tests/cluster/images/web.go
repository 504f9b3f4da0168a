// web is what runs in the test cluster's pods: without arguments a web server at port 8080, and with
//
//	web get URL    prints what is at the URL, and fails unless that is answered with 200 within 3 s
//
// The server tells at / who it is and who asks ("HOST ADDRESS"), and at /healthz that it is well, until it is asked
// for /break.
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == "get" {
		get(os.Args[2])
		return
	}
	serve()
}

func get(url string) {
	client := http.Client{Timeout: 3 * time.Second}
	response, err := client.Get(url)
	if err != nil {
		fail(err)
	}
	defer response.Body.Close()
	if _, err := io.Copy(os.Stdout, response.Body); err != nil {
		fail(err)
	}
	if response.StatusCode != http.StatusOK {
		fail(response.Status)
	}
}

func serve() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	go func() { // the first process of a container is not ended by a signal that it doesn't handle
		<-ended
		os.Exit(0)
	}()

	var broken atomic.Bool
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		host, _ := os.Hostname()
		address, _, _ := net.SplitHostPort(r.RemoteAddr)
		fmt.Fprintf(w, "%s %s\n", host, address)
	})
	http.HandleFunc("/break", func(http.ResponseWriter, *http.Request) { broken.Store(true) })
	http.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		if broken.Load() {
			http.Error(w, "broken", http.StatusInternalServerError)
		}
	})
	fail(http.ListenAndServe(":8080", nil))
}

func fail(reason any) {
	fmt.Fprintln(os.Stderr, reason)
	os.Exit(1)
}
