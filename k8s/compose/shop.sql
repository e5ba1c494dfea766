-- The sample source: a small shop. shop.py changes it.
CREATE DATABASE shop;
USE shop;
SET SESSION cte_max_recursion_depth = 100000;

CREATE TABLE customers (
  id INT PRIMARY KEY AUTO_INCREMENT,
  name VARCHAR(80) NOT NULL,
  email VARCHAR(120) NOT NULL,
  city VARCHAR(40),
  since DATETIME(6) NOT NULL
);
CREATE TABLE products (
  id INT PRIMARY KEY AUTO_INCREMENT,
  title VARCHAR(80) NOT NULL,
  price DECIMAL(10, 2) NOT NULL,
  stock INT NOT NULL,
  attributes JSON
);
CREATE TABLE orders (
  id BIGINT PRIMARY KEY AUTO_INCREMENT,
  customer INT NOT NULL,
  state ENUM('new', 'paid', 'sent', 'returned') NOT NULL,
  total DECIMAL(12, 2) NOT NULL,
  changed TIMESTAMP(6) NOT NULL,
  KEY (customer)
);
CREATE TABLE order_lines (
  order_id BIGINT NOT NULL,
  line TINYINT UNSIGNED NOT NULL,
  product INT NOT NULL,
  quantity SMALLINT NOT NULL,
  price DECIMAL(10, 2) NOT NULL,
  PRIMARY KEY (order_id, line)
);

INSERT INTO customers (name, email, city, since)
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)
SELECT CONCAT('Customer ', i), CONCAT('c', i, '@example.com'), ELT(1 + i % 5, 'Oslo', 'Łódź', 'Köln', '東京', NULL),
       '2026-01-01' + INTERVAL i MINUTE FROM n;
INSERT INTO products (title, price, stock, attributes)
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500)
SELECT CONCAT('Product ', i), 1 + i % 90 + 0.99, 10000, JSON_OBJECT('colour', ELT(1 + i % 3, 'red', 'green', 'blue'), 'grams', i) FROM n;
INSERT INTO orders (customer, state, total, changed)
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 50000)
SELECT 1 + i % 5000, ELT(1 + i % 4, 'new', 'paid', 'sent', 'returned'), 0, '2026-02-01' + INTERVAL i SECOND FROM n;
INSERT INTO order_lines (order_id, line, product, quantity, price)
SELECT o.id, l.line, p.id, 1 + (o.id + l.line) % 3, p.price
FROM orders o
JOIN (SELECT 1 AS line UNION ALL SELECT 2 UNION ALL SELECT 3) l
JOIN products p ON p.id = 1 + (o.id * 7 + l.line) % 500;
UPDATE orders o JOIN (SELECT order_id, SUM(quantity * price) AS total FROM order_lines GROUP BY order_id) s ON s.order_id = o.id
SET o.total = s.total;

GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'cutline'@'%';
