"""Changes the sample source (shop.sql) for ever: orders come, are paid, sent, returned and removed, prices change."""

import logging
import os
import random
import time
from pathlib import Path

import pymysql

PER_SECOND = float(os.environ.get("SHOP_TRANSACTIONS_PER_SECOND") or 10)
log = logging.getLogger("shop")


def connect() -> pymysql.connections.Connection:
    """A connection as root: what changes the sample is no part of Cutline, which only reads."""
    password = Path("/run/cutline/mysql-root").read_text()
    return pymysql.connect(host="mysql", user="root", password=password, database="shop", connect_timeout=5)


def order(cursor: pymysql.cursors.Cursor, draw: random.Random) -> None:
    """A new order with one to five lines; the stock of its products falls."""
    cursor.execute(
        "INSERT INTO orders (customer, state, total, changed) VALUES (%s, 'new', 0, NOW(6))", (draw.randint(1, 5000),)
    )
    number = cursor.lastrowid
    for line in range(1, draw.randint(2, 6)):
        product, quantity = draw.randint(1, 500), draw.randint(1, 3)
        cursor.execute("UPDATE products SET stock = stock - %s WHERE id = %s", (quantity, product))
        cursor.execute(
            "INSERT INTO order_lines SELECT %s, %s, id, %s, price FROM products WHERE id = %s",
            (number, line, quantity, product),
        )
    cursor.execute(
        "UPDATE orders SET total = (SELECT SUM(quantity * price) FROM order_lines WHERE order_id = %s) WHERE id = %s",
        (number, number),
    )


def advance(cursor: pymysql.cursors.Cursor, draw: random.Random) -> None:
    """Some orders reach their next state."""
    cursor.execute("SELECT MAX(id) FROM orders")
    newest = cursor.fetchone()[0]
    cursor.execute(
        "UPDATE orders SET state = ELT(FIELD(state, 'new', 'paid', 'sent'), 'paid', 'sent', 'returned'),"
        " changed = NOW(6) WHERE id BETWEEN %s AND %s AND state <> 'returned'",
        (first := draw.randint(1, newest), first + 9),
    )


def remove(cursor: pymysql.cursors.Cursor, draw: random.Random) -> None:
    """An order goes with its lines, as one transaction over two tables."""
    cursor.execute("SELECT MAX(id) FROM orders")
    number = draw.randint(1, cursor.fetchone()[0])
    cursor.execute("DELETE FROM order_lines WHERE order_id = %s", (number,))
    cursor.execute("DELETE FROM orders WHERE id = %s", (number,))


def reprice(cursor: pymysql.cursors.Cursor, draw: random.Random) -> None:
    """A price and a stock change."""
    cursor.execute(
        "UPDATE products SET price = price + %s, stock = 10000, attributes = JSON_SET(attributes, '$.grams', %s)"
        " WHERE id = %s",
        (draw.choice((-1, 1)), draw.randint(1, 900), draw.randint(1, 500)),
    )


def move(cursor: pymysql.cursors.Cursor, draw: random.Random) -> None:
    """A customer moves."""
    cursor.execute(
        "UPDATE customers SET city = %s WHERE id = %s", (f"City {draw.randint(1, 99)}", draw.randint(1, 5000))
    )


def main() -> None:
    """Change the shop until the container is stopped; a lost server is tried again."""
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    draw = random.Random()
    steps = [order] * 6 + [advance] * 4 + [remove, reprice, move]
    while True:
        try:
            with connect() as connection, connection.cursor() as cursor:
                log.info("%g transactions a second", PER_SECOND)
                while True:
                    draw.choice(steps)(cursor, draw)
                    connection.commit()
                    time.sleep(1 / PER_SECOND)
        except pymysql.MySQLError as error:
            log.warning("MySQL does not answer (%s); trying again", error)
            time.sleep(2)


if __name__ == "__main__":
    main()
